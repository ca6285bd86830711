"""Whole runs that train adapters: what is published is what answers, for everybody or for each user."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from openclaw_test.training_run import TrainingRun
from slime.store import Store
from slime.weights.adapters import is_adapter
from slime.weights.directories import read_manifest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FLAGS = ["--use-lora", "--rollout-batch-size", "2", "--lr", "1e-3", "--kl-loss-coef", "0.01", "--max-staleness", "100"]
FLAGS += ["--baseline", "none"]  # somebody whose opinion never changes would teach a moving average nothing
PAUSE_S = 0.4  # people who read what they get leave the trainer, which takes what is left over, some of a core
OPINIONS = {"ada": "Thanks, that is great!", "bob": "No, that is wrong. Please correct it."}


async def talk(run: TrainingRun, user: str, until: Callable[[], bool]) -> None:
    """Hold two-turn conversations of somebody who always has the same opinion."""
    async with httpx.AsyncClient(base_url=run.base_url, timeout=60) as client:
        for number in range(10**6):
            if until():
                return
            messages = [{"role": "user", "content": f"{user} asks question {number}"}]
            for _ in range(2):
                body = {"model": "m", "messages": messages, "max_tokens": 8, "user": user}
                answer = await client.post("/chat/completions", json=body)
                answer.raise_for_status()
                reply = answer.json()["choices"][0]["message"]["content"] or "."
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": OPINIONS[user]}]
            await asyncio.sleep(PAUSE_S)


async def served_versions(run: TrainingRun) -> dict[str, set[int]]:
    """Every policy version that made a token, by the source of its turn."""
    found: dict[str, set[int]] = {}
    async with Store.open(run.buffer_dir, appends=False) as store:
        for turn in await store.recent(5000):
            found.setdefault(turn.source, set()).update(turn.completion.policy_versions)
    return found


@pytest.mark.parametrize("per", ["run", "user"])
async def test_what_is_published_answers(chat_model: Path, tmp_path: Path, per: str) -> None:
    async with TrainingRun(chat_model, tmp_path / "run", [*FLAGS, "--adapter-per", per]) as run:

        def is_enough() -> bool:
            run.check()
            return run.step >= 6

        async with asyncio.timeout(200):
            await asyncio.gather(*(talk(run, user, is_enough) for user in OPINIONS))
            step = run.step
            await asyncio.gather(*(talk(run, user, lambda: run.step > step + 2) for user in OPINIONS))
        versions = await served_versions(run)
        metrics = run.metrics()
    checkpoints = tmp_path / "run" / "checkpoints"
    if per == "run":
        weights = checkpoints / "checkpoint-latest" / "weights"
        assert is_adapter(weights)
        assert max(max(found) for found in versions.values()) >= 3
    else:
        assert len(versions) == 2
        for source, found in versions.items():
            publications = (checkpoints / "published" / source).glob("version-*")
            manifest = max((read_manifest(path) for path in publications), key=lambda one: one.version)
            assert manifest.adapter == source
            assert read_manifest(checkpoints / "users" / source / "checkpoint-latest" / "weights").adapter == source
            assert 0 in found, "new users start at the base"
            assert 1 <= max(found) <= manifest.version
        first, second = versions.values()
        assert first & second == {0}, "a version is one user's"
    assert [entry["step"] for entry in metrics] == list(range(1, len(metrics) + 1))
