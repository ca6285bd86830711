"""What every engine with adapters does: serve several beside the base, hot-loaded, each reply labelled with its own.

SGLang answers to the same functions, started with `--enable-lora`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from conformance import LONG, _ongoing
from rig import PROMPT, Rig
from slime.engines.client import HttpEngine
from slime.engines.dialect.reading import join_deltas, parse_completion
from slime.engines.dialect.versions import adapter_to_wire
from slime.protocols import GenerateRequest
from slime.types import Completion, SamplingParams, VersionSpan

ROUNDING = 5
"""The oracle's weights are base and adapter merged, which rounds otherwise than adding what each of them gives."""


@pytest.fixture
async def adapted(rig: Rig) -> AsyncIterator[HttpEngine]:
    """A client of the engine; whatever the test loaded is let go of afterwards."""
    async with HttpEngine(rig.url) as client:
        yield client
        for name, versions in (await client.adapters()).items():
            for version in versions:
                await client._unload(adapter_to_wire(name, version))


def ask(adapter: str = "", *, seed: int | None = None, num: int = 12, name: str = "one") -> GenerateRequest:
    return GenerateRequest(name, PROMPT, SamplingParams(max_new_tokens=num, seed=seed), adapter)


def assert_made_by(rig: Rig, completion: Completion, version: int | None) -> None:
    """Every log-prob is the adapter's, and the label too; with None those of the base."""
    oracle = rig.oracle if version is None else rig.adapter_oracle
    expected = oracle([*PROMPT, *completion.token_ids], version or 0, 1.0)[len(PROMPT) - 1 :]
    assert list(completion.logprobs) == pytest.approx(expected, abs=ROUNDING * rig.tolerance)
    assert completion.spans == (VersionSpan(version or 0, 0, len(completion.token_ids)),)


async def test_an_adapter_answers_beside_the_base(rig: Rig, adapted: HttpEngine):
    await adapted.load_adapter("ada", rig.adapter_dirs[7], 7)
    assert_made_by(rig, await adapted.generate(ask("ada")), 7)
    assert_made_by(rig, await adapted.generate(ask()), None)
    assert_made_by(rig, await adapted.generate(ask("somebody-new")), None)
    assert await adapted.adapters() == {"ada": [7]}


async def test_several_adapters_and_the_base_in_the_same_steps(rig: Rig, adapted: HttpEngine):
    await adapted.load_adapter("ada", rig.adapter_dirs[7], 7)
    await adapted.load_adapter("bob", rig.adapter_dirs[8], 8)
    wanted = [("ada", 7), ("bob", 8), ("", None)]
    completions = await asyncio.gather(
        *(adapted.generate(ask(adapter, num=24, name=f"r{i}")) for i, (adapter, _) in enumerate(wanted))
    )
    for completion, (_, version) in zip(completions, wanted, strict=True):
        assert_made_by(rig, completion, version)


async def test_a_version_is_loaded_while_requests_run_which_keep_their_own(rig: Rig, adapted: HttpEngine):
    await adapted.load_adapter("ada", rig.adapter_dirs[7], 7)
    task, _ = await _ongoing(adapted, "early", 2 * LONG, lora_path="ada@7")
    await adapted.load_adapter("ada", rig.adapter_dirs[8], 8)
    late = await adapted.generate(ask("ada"))
    assert not task.done()
    assert_made_by(rig, late, 8)
    early = parse_completion(orjson.loads(await asyncio.wait_for(task, 60)))
    expected = rig.adapter_oracle([*PROMPT, *early.token_ids], 7, 1.0)[len(PROMPT) - 1 :]
    assert list(early.logprobs) == pytest.approx(expected, abs=ROUNDING * rig.tolerance)


async def test_streams_are_labelled_too(rig: Rig, adapted: HttpEngine):
    await adapted.load_adapter("ada", rig.adapter_dirs[7], 7)
    deltas = [delta async for delta in adapted.stream(ask("ada"))]
    assert {delta.version for delta in deltas} == {7}
    assert_made_by(rig, join_deltas(deltas), 7)


async def test_scores_are_those_of_whom_is_asked_for(rig: Rig, adapted: HttpEngine):
    start = len(PROMPT) // 2
    await adapted.load_adapter("ada", rig.adapter_dirs[7], 7)
    await adapted.load_adapter("bob", rig.adapter_dirs[8], 8)
    asked = [("ada", 7), ("bob", 8), ("", None), ("somebody-new", None)]
    for adapter, version in (*asked, *asked):  # the second round finds the prompt in the cache
        scores = await adapted.score(PROMPT, start, 3, adapter=adapter)
        oracle = rig.oracle if version is None else rig.adapter_oracle
        expected = oracle(PROMPT, version or 0, 1.0)[start - 1 :]
        assert list(scores.logprobs) == pytest.approx(expected, abs=ROUNDING * rig.tolerance)
        assert scores.version == (version or 0)
        best = oracle([*PROMPT[:start], scores.top_ids[0][0]], version or 0, 1.0)[-1]
        assert scores.top_logprobs[0][0] == pytest.approx(best, abs=ROUNDING * rig.tolerance)


async def test_a_reply_scored_by_its_own_adapter_has_the_log_probs_it_was_sampled_with(rig: Rig, adapted: HttpEngine):
    await adapted.load_adapter("ada", rig.adapter_dirs[7], 7)
    reply = await adapted.generate(ask("ada"))
    scores = await adapted.score((*PROMPT, *reply.token_ids), len(PROMPT), adapter="ada")
    assert list(scores.logprobs) == pytest.approx(list(reply.logprobs), abs=ROUNDING * rig.tolerance)


async def test_cached_prompts_are_never_shared_between_adapters_or_versions(rig: Rig, adapted: HttpEngine):
    for version in (7, 8):
        await adapted.load_adapter("ada", rig.adapter_dirs[version], version)
        for _ in range(2):  # the second reads its own cache
            assert_made_by(rig, await adapted.generate(ask("ada")), version)
        assert_made_by(rig, await adapted.generate(ask()), None)


async def test_the_same_name_can_hold_another_adapter_later(rig: Rig, adapted: HttpEngine):
    for path in (rig.adapter_dirs[7], rig.adapter_dirs[8]):
        assert rig.post("/load_lora_adapter", {"lora_name": "guest", "lora_path": str(path)}).status_code == 200
        answer = rig.generate(lora_path="guest", max_new_tokens=10)
        expected = rig.adapter_oracle([*PROMPT, *answer["output_ids"]], int(path.name[-1]), 1.0)[len(PROMPT) - 1 :]
        found = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
        if rig.oracle is not rig.adapter_oracle:  # the scripted engine knows versions by names only
            assert found == pytest.approx(expected, abs=ROUNDING * rig.tolerance)
        assert rig.post("/unload_lora_adapter", {"lora_name": "guest"}).json()["loaded_adapters"] == {}


async def test_only_the_two_newest_versions_stay(rig: Rig, adapted: HttpEngine):
    for version in (6, 7, 8, 9):
        await adapted.load_adapter("ada", rig.adapter_dirs[version], version)
    await adapted.load_adapter("ada", rig.adapter_dirs[9], 9)  # again: harmless
    await asyncio.wait_for(asyncio.gather(*adapted._background), 10)
    assert await adapted.adapters() == {"ada": [8, 9]}
    assert_made_by(rig, await adapted.generate(ask("ada")), 9)


async def test_what_is_not_loaded_is_refused(rig: Rig, adapted: HttpEngine):
    body = {"input_ids": [1, 2], "lora_path": "ada@3", "sampling_params": {"max_new_tokens": 2}}
    assert rig.post("/generate", body).status_code == 400
    assert rig.post("/unload_lora_adapter", {"lora_name": "ada@3"}).status_code == 400
    missing = rig.post("/load_lora_adapter", {"lora_name": "ada@3", "lora_path": "/nowhere"})
    assert (missing.status_code, missing.json()["success"]) == (400, False)
    assert await adapted.adapters() == {}
