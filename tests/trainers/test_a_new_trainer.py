"""A trainer of another kind is one file with a TRAINER in it, and `--trainer` in front of its path."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from learners import random_samples
from slime.cluster.learner import Rank, RankedLearner
from slime.config.loader import load_config
from slime.config.sections import Config
from slime.errors import ConfigError, PluginError
from slime.monitor import Monitor
from slime.pipeline import Pipeline
from slime.progress import Progress
from slime.protocols import Resumed
from slime.publisher import Publisher
from slime.rollout.context import StreamRollout
from slime.store import Store
from slime.trainers.build import build_trainer, check_trainer
from slime.types import Batch, SampleGroup, TrainReport
from slime.weights.versions import Versions

THE_FILE = '''
"""Trains a counter: its weights are how often it was trained."""

import json

from slime.errors import ConfigError
from slime.protocols import Resumed
from slime.trainers.build import TrainerBackend
from slime.types import TrainReport


class Counter:
    def __init__(self, config, rank, world_size, address):
        self.step = 0

    def resume(self, save_dir, wanted="auto"):
        saved = sorted(save_dir.glob("checkpoint-*"))
        self.step = json.loads((saved[-1] / "step").read_text()) if saved else 0
        return Resumed(self.step, {}, saved[-1] if saved else None)

    def train(self, batch):
        self.step += 1
        return TrainReport(self.step, {"reward/mean": 1.0})

    def publish(self, weights_dir, version, adapter=""):
        return self._write(weights_dir)

    def save(self, checkpoint_dir):
        return self._write(checkpoint_dir / f"checkpoint-{self.step}")

    def _write(self, folder):
        folder.mkdir(parents=True)
        (folder / "step").write_text(json.dumps(self.step))
        return folder


def check(config):
    if config.trainer.lr > 1:
        raise ConfigError("--lr: a counter counts by one")


TRAINER = TrainerBackend(Counter, check)
'''


class OneRank(RankedLearner):
    """A `RankedLearner` over a rank in this process."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, ("",))
        self._rank = Rank(config, 0, 1, "")

    async def resume(self) -> Resumed:
        return await self._call("resume", self._save_dir, "auto")

    async def train(self, batch: Batch) -> TrainReport:
        return await self._call("train", batch)

    async def _call(self, method: str, *arguments: Any) -> Any:
        return self._rank.call(method, *arguments)


def configured(folder: Path, *flags: str) -> Config:
    (folder / "counter.py").write_text(THE_FILE)
    trainer = () if "--trainer" in flags else ("--trainer", str(folder / "counter.py"))
    places = ("--save-dir", str(folder / "checkpoints"), "--run-dir", str(folder / "run"))
    numbers = ("--rollout-batch-size", "2", "--num-rollout", "2", "--trainer-priority", "normal")
    return load_config([*trainer, *places, *numbers, *flags], environ={})


async def run(config: Config, folder: Path) -> list[Path]:
    """The pipeline to its end; what engines were given."""
    served: list[Path] = []

    async def rollout() -> AsyncGenerator[SampleGroup]:
        for index, sample in enumerate(random_samples(4)):
            yield SampleGroup(f"group{index}", (dataclasses.replace(sample, turn_ids=()),))

    async def serve(weights_dir: Path, version: int) -> None:
        served.append(weights_dir)

    learner = OneRank(config)
    progress = Progress()
    async with Store.open(folder / "buffer") as store:
        pipeline = Pipeline(
            store=store,
            rollout=StreamRollout(rollout),
            learner=learner,
            publisher=Publisher(Versions(config.checkpoint.save_dir.resolve()), learner, serve, progress=progress),
            progress=progress,
            monitor=Monitor(config.monitor.run_dir),
            owner="test",
            rollout_config=config.rollout,
            checkpoint_config=config.checkpoint,
        )
        await pipeline.run()
    return served


def test_a_trainer_in_a_file_of_its_own_makes_two_updates_and_is_served_and_saved(tmp_path: Path) -> None:
    config = configured(tmp_path)
    check_trainer(config)
    served = asyncio.run(run(config, tmp_path))
    assert [json.loads((weights_dir / "step").read_text()) for weights_dir in served][-2:] == [1, 2]
    assert json.loads((config.checkpoint.save_dir / "checkpoint-2" / "step").read_text()) == 2
    assert Rank(config, 0, 1, "").call("resume", config.checkpoint.save_dir).step == 2


def test_a_trainer_says_before_the_start_what_it_cannot_train_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a counter counts by one"):
        check_trainer(configured(tmp_path, "--lr", "2"))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("torhc", "--trainer torhc: no such trainer; did you mean torch?"),
        ("megatron", "--trainer megatron: no such trainer; there is torch, or a file of yours: mine.py"),
    ],
)
def test_a_trainer_that_does_not_exist_is_refused_by_name(tmp_path: Path, name: str, answer: str) -> None:
    with pytest.raises(ConfigError, match=answer):
        check_trainer(configured(tmp_path, "--trainer", name))


def test_a_file_without_a_trainer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("TRAINER = 3\nOTHER = 4\n")
    with pytest.raises(ConfigError, match=r"none.py: TRAINER is a int; make it a TrainerBackend\(build\)"):
        check_trainer(configured(tmp_path, "--trainer", str(tmp_path / "none.py")))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(PluginError, match=r"empty.py: no TRAINER in it"):
        check_trainer(configured(tmp_path, "--trainer", str(tmp_path / "empty.py")))


def test_a_trainer_of_one_adapter_is_refused_where_every_user_has_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trains one adapter for all: leave out --adapter-per user"):
        build_trainer(configured(tmp_path, "--use-lora", "--adapter-per", "user"))


def test_a_trainer_on_cpus_takes_what_nothing_else_wants_or_a_share_as_any_process(tmp_path: Path) -> None:
    def policy(*flags: str) -> int:
        Rank(configured(tmp_path, *flags), 0, 1, "")
        return os.sched_getscheduler(0)

    with ThreadPoolExecutor(max_workers=1) as thread:  # it goes with its thread
        assert thread.submit(policy).result(60) == os.SCHED_OTHER
        assert thread.submit(policy, "--trainer-priority", "idle").result(60) == os.SCHED_IDLE
