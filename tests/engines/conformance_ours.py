"""Where our engines are stricter or kinder than SGLang: what they owe to callers who make mistakes."""

from __future__ import annotations

import asyncio
import time

import httpx
import orjson
import pytest
from conformance import LONG, SETTLE_S, _ongoing, _until_free
from rig import PROMPT, VOCAB_SIZE, Rig, generate_fields
from slime.engines.client import HttpEngine
from slime.engines.dialect.reading import parse_completion


@pytest.mark.parametrize("token_id", [VOCAB_SIZE, -1, 10**6])
def test_an_id_outside_the_vocabulary_is_refused(rig: Rig, token_id: int):
    """The real SGLang dies of one, and takes every other request with it."""
    response = rig.post("/generate", generate_fields(input_ids=[*PROMPT, token_id]))
    assert response.status_code == 400
    assert len(rig.generate()["output_ids"]) == 8


@pytest.mark.parametrize(
    "body",
    [
        {"input_ids": [1], "lora_path": "not-loaded@1"},
        {"input_ids": [1], "lora_path": ["one", "two"]},
        {"text": "Hello"},
        {"input_ids": [[1], [2]]},
        {"input_ids": [1], "sampling_params": {"json_schema": "{}"}},
        {"input_ids": [1], "sampling_params": {"n": 2}},
    ],
)
def test_what_is_not_spoken_is_refused(rig: Rig, body: dict[str, object]):
    assert rig.post("/generate", body).status_code == 400


def test_an_update_without_a_version_is_refused(rig: Rig):
    """SGLang takes it, and goes on calling the new weights by the old name."""
    for body in ({"model_path": str(rig.next_dir)}, {"model_path": str(rig.next_dir), "weight_version": "v2"}):
        response = rig.post("/update_weights_from_disk", body)
        assert response.status_code == 400
    assert httpx.get(rig.url + "/model_info").json()["weight_version"] == "default"


async def test_leaving_before_an_unstreamed_answer_ends_the_request(rig: Rig):
    """SGLang goes on to the last token."""
    async with httpx.AsyncClient(timeout=0.4) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(rig.url + "/generate", json=generate_fields(rid="gone", max_new_tokens=1900))
    started = time.monotonic()
    await _until_free(rig, "gone")
    assert time.monotonic() - started < SETTLE_S / 5


async def test_a_swap_without_a_pause_labels_every_token(rig: Rig):
    """SGLang would wait for what runs; ours goes on under the new weights, with keys and values computed anew."""
    async with HttpEngine(rig.url, pause_mode=None) as engine:
        task, _ = await _ongoing(engine, "unpaused", LONG)
        await engine.update_weights(rig.next_dir, 9)
        completion = parse_completion(orjson.loads(await asyncio.wait_for(task, 30)))
        await engine.update_weights(rig.first_dir, 0)
    assert [span.version for span in completion.spans] == [0, 9]
    ids, border = [*PROMPT, *completion.token_ids], completion.spans[1].start
    after = rig.oracle(ids, 9, 1.0)[len(PROMPT) - 1 :][border:]
    assert list(completion.logprobs[border:]) == pytest.approx(after, abs=rig.tolerance)
