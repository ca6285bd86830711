"""A whole training run under fire: engine, server, trainer rank and driver are killed while people talk to it.

What a client was told is stored must be stored, nothing may be trained twice, and every step's lineage must be whole.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest
from openai import AsyncOpenAI
from openclaw_test.training_run import TrainingRun
from slime.store import Store
from slime.types import TurnState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # the trainer runs on what others leave of the cores

FLAGS = ["--rollout-batch-size", "4", "--lr", "1e-3", "--kl-loss-coef", "0", "--max-staleness", "100"]
PAUSE_S = 0.4  # as in test_lora_runs.py: a second set of tests may have the other core
REACTIONS = ("Thanks, that is great!", "No, that is wrong. Please correct it.")


class Talker:
    """Holds two-turn conversations for ever, and remembers every turn that was acknowledged as stored."""

    def __init__(self, base_url: str) -> None:
        self.acknowledged: list[str] = []
        self.num_failed = 0
        self._base_url = base_url

    async def talk(self, name: int) -> None:
        async with httpx.AsyncClient(base_url=self._base_url, timeout=60) as client:
            for number in range(10**6):
                messages = [{"role": "user", "content": f"person {name} asks question {number}"}]
                try:
                    for _ in range(2):
                        reply = await self._ask(client, messages)
                        said = REACTIONS[(name + number) % 2]
                        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
                except (httpx.HTTPError, KeyError):
                    self.num_failed += 1
                await asyncio.sleep(PAUSE_S)

    async def goes_on(self, run: TrainingRun, after: str) -> None:
        """Wait until people are answered and updates are made again."""
        turns, step = len(self.acknowledged), run.step
        await until(lambda: len(self.acknowledged) > turns + 8, f"replies after {after}")
        await until(lambda: run.step >= step + 2, f"updates after {after}")

    async def _ask(self, client: httpx.AsyncClient, messages: list[dict[str, str]]) -> str:
        body = {"model": "m", "messages": messages, "max_tokens": 12}
        answer = await client.post("/chat/completions", json=body)
        answer.raise_for_status()
        if answer.headers.get("x-openclaw-capture") == "stored":
            self.acknowledged.append(answer.headers["x-openclaw-turn"])
        return str(answer.json()["choices"][0]["message"]["content"])


def find(run: TrainingRun, words: str) -> psutil.Process | None:
    """The one process below the driver whose command line holds these words."""
    found = [
        process
        for process in psutil.Process(run.pid).children(recursive=True)
        if words in " ".join(process.cmdline()) and "die_with_parent" not in " ".join(process.cmdline())
    ]
    return found[0] if found else None


VICTIMS = {
    "engine": "slime.engines.embedded",
    "server": "openclaw.server",
    "trainer": "ray::Rank",
    "an actor that holds a process": "ray::Holder",
}


async def until(condition, what: str, timeout_s: float = 400) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        await asyncio.sleep(0.2)


async def test_nothing_acknowledged_is_lost_or_trained_twice(chat_model: Path, tmp_path: Path):
    kills = 0
    async with TrainingRun(chat_model, tmp_path / "run", FLAGS) as run:
        talker = Talker(run.base_url)
        talking = [asyncio.create_task(talker.talk(name)) for name in range(4)]
        await until(lambda: run.step >= 2, "first updates")
        for words in VICTIMS.values():
            victim = find(run, words)
            assert victim is not None, f"no process {words}"
            victim.send_signal(signal.SIGKILL)
            kills += 1
            await talker.goes_on(run, f"{words} was killed")
        os.kill(run.pid, signal.SIGKILL)
        kills += 1
        await until(lambda: run.num_restarts == 1, "restart of the driver")
        await talker.goes_on(run, "the driver was killed")
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        steps = run.step
    assert kills == len(VICTIMS) + 1
    await check_store(run.buffer_dir, talker.acknowledged, steps)


async def check_store(buffer_dir: Path, acknowledged: list[str], steps: int) -> None:
    async with Store.open(buffer_dir, appends=False) as store:
        lost = [turn_id for turn_id in acknowledged if await store.get(turn_id) is None]
        assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged turns are not stored"
        trained = [turn_id for step in range(1, steps + 1) for turn_id in await store.trained_by(step)]
        twice = [turn_id for turn_id, count in Counter(trained).items() if count > 1]
        assert not twice
        assert len(trained) == 4 * steps, "every step consumed a whole batch"
        counts = await store.counts()
        assert counts[TurnState.TRAINED] >= len(trained)


async def test_a_run_leaves_nothing_running(chat_model: Path, tmp_path: Path):
    async with TrainingRun(chat_model, tmp_path / "run", FLAGS) as run:
        family = psutil.Process(run.pid).children(recursive=True)
        assert len(family) > 5
        client = AsyncOpenAI(base_url=run.base_url, api_key="local")
        assert (await client.models.list()).data
        await client.close()
    await until(lambda: not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], "end of all")
