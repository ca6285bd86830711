"""Distillation and its combination with a reward, through a real server, engine, teacher and trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openclaw_test.people.assistants import StreamedAssistant
from openclaw_test.people.personas import PLAIN, TINY
from openclaw_test.people.sessions import Crowd, Exchange
from openclaw_test.people.users import Person
from openclaw_test.training_run import TrainingRun
from slime.store import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(900, func_only=True)]

UPDATES, BATCH = 3, 8
RUNS = {
    "opd": ("openclaw_opd", "custom_loss", ()),
    "combine by selection": (
        "openclaw_combine",
        "custom_loss_select",
        ("--teacher-top-k", "4", "--teacher-support", "student", "--hint-selection", "sequence_optimal"),
    ),
}


async def talk(model_dir: Path, run_dir: Path, flags: list[str]) -> tuple[list[dict[str, float]], list[Exchange]]:
    """People talk until the updates are made: the metrics of each, and what was said."""
    said: list[Exchange] = []
    async with (
        TrainingRun(model_dir, run_dir, flags) as run,
        AsyncOpenAI(base_url=run.base_url, api_key="local", max_retries=0) as client,
    ):
        name = (await client.models.list()).data[0].id
        assistant = StreamedAssistant(client, name, max_tokens=TINY.max_tokens)
        crowd = Crowd([Person(who, PLAIN, 7) for who in ("Ada", "Bo", "Cleo", "Dan")], assistant)
        talking = asyncio.create_task(crowd.talk(said.append))
        async with asyncio.timeout(300):
            while run.step < UPDATES:
                run.check()
                await asyncio.sleep(0.2)
        crowd.stop()
        await talking
        return run.metrics(), said


@pytest.mark.parametrize("name", RUNS)
async def test_a_method_learns_from_what_people_say(tmp_path: Path, tiny_model_dir: Path, name: str):
    package, loss, more = RUNS[name]
    flags = [
        *("--custom-loss-function-path", f"{package}.{loss}", "--rollout-function-path", f"{package}.custom_rollout"),
        *("--num-rollout", str(UPDATES), "--rollout-batch-size", str(BATCH), "--lr", "5e-4", "--weight-decay", "0"),
        *("--num-judge-workers", "8", "--keep-serving", *more),
    ]
    metrics, said = await talk(tiny_model_dir, tmp_path / "run", flags)
    assert not [exchange.error for exchange in said if exchange.error]
    assert [entry["step"] for entry in metrics] == [1, 2, 3]
    assert all(entry["train/samples"] == BATCH and entry["train/grad_norm"] > 0 for entry in metrics)
    async with Store.open(tmp_path / "run" / "turns", appends=False) as store:
        trained = [turn_id for step in (1, 2, 3) for turn_id in await store.trained_by(step)]
        verdicts = [await store.verdict(turn_id) for turn_id in trained]
    assert len(trained) == UPDATES * BATCH
    hints = [verdict.hint for verdict in verdicts if verdict and verdict.hint]
    assert any("plain text" in hint for hint in hints)
    if package == "openclaw_opd":
        assert len(hints) == len(trained)
    else:
        assert 0 < len(hints) < len(trained)
    if loss == "custom_loss":
        assert metrics[0]["train/importance_weight_mean"] == pytest.approx(1.0, abs=1e-3)
        name_of_gap = "train/opd_reverse_kl" if package == "openclaw_opd" else "loss/opd"
        # A mean over all samples of a batch, of which only some may have a teacher; without its hint it would be 0.
        gap = max(entry[name_of_gap] for entry in metrics)
        assert gap > 0.02, "the teacher, which has read the hint, disagrees with what was written"
