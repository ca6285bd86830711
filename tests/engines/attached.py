"""A server attached to a running engine by --engine-url captures what that engine sampled, whichever engine it is.

A real server process, the official client, the engine of the fixture `rig`; then the stored turns are held against
transformers' forward pass.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from rig import Rig
from slime.engines.client import HttpEngine
from slime.engines.launch import free_port
from slime.store import Store
from slime.types import Turn, TurnKind, TurnState

QUESTION = {"role": "user", "content": "What is three plus four?"}
TEMPERATURE = 0.3  # at which the random model samples no control tokens: those would not come back as they were
COMPLAINT = {"role": "user", "content": "Shorter, please."}


@pytest.fixture
def server(rig: Rig, tmp_path: Path) -> Iterator[str]:
    """URL of a server that captures into `tmp_path`."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "openclaw.server", "--port", str(port), "--model-path", str(rig.first_dir)]
    command += ["--engine-url", rig.url, "--enable-rl-intercept", "--rl-buffer-dir", str(tmp_path / "buffer")]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(url):
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url + "/readyz", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def _check(rig: Rig, turn: Turn, version: int) -> None:
    """What was stored is what was sampled."""
    completion = turn.completion
    ids = [*turn.prompt_ids, *completion.token_ids]
    expected = rig.oracle(ids, version, turn.sampling.temperature)[len(turn.prompt_ids) - 1 :]
    assert list(completion.logprobs) == pytest.approx(expected, abs=rig.tolerance)
    assert completion.policy_versions == (version,) * len(completion.token_ids)
    assert len(completion.token_ids) > 0


async def test_a_conversation_is_captured_as_it_was_sampled(rig: Rig, server: str, tmp_path: Path) -> None:
    async with openai.AsyncOpenAI(base_url=server + "/v1", api_key="any", max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        first = await client.chat.completions.create(
            model=model,
            messages=[QUESTION],
            max_tokens=24,
            temperature=TEMPERATURE,  # type: ignore[list-item]
        )
        reply = {"role": "assistant", "content": first.choices[0].message.content}
        async with HttpEngine(rig.url) as engine:
            await engine.update_weights(rig.next_dir, 3)
        pieces = []
        stream = await client.chat.completions.create(
            model=model,
            messages=[QUESTION, reply, COMPLAINT],  # type: ignore[list-item]
            max_tokens=24,
            temperature=TEMPERATURE,
            stream=True,
        )
        async for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
    async with HttpEngine(rig.url) as engine:
        await engine.update_weights(rig.first_dir, 0)
    store = Store.open(tmp_path / "buffer", appends=False)
    try:
        second_turn, first_turn = sorted(await store.recent(10), key=lambda turn: -turn.created_at)
    finally:
        await store.close()
    _check(rig, first_turn, version=0)
    _check(rig, second_turn, version=3)
    assert first_turn.sampling.temperature == TEMPERATURE
    assert first_turn.completion.text == first_turn.reply["content"] == reply["content"]
    assert second_turn.completion.text == "".join(pieces)
    assert (second_turn.parent_id, second_turn.session_id) == (first_turn.turn_id, first_turn.session_id)
    assert (first_turn.kind, second_turn.kind) == (TurnKind.MAIN, TurnKind.MAIN)
    assert (first_turn.state, second_turn.state) == (TurnState.READY, TurnState.SERVED)
    assert first_turn.next_state == (COMPLAINT,)
    fed = (*first_turn.prompt_ids, *first_turn.completion.token_ids)
    assert second_turn.prompt_ids[: len(fed)] == fed, "the ids that were sampled are the ids that are fed again"
