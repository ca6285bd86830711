"""The trainer's ranks as actors, driven as one: every rank gets the whole batch and takes its share of it.

    RankedLearner (in the driver) ─▶ RankActor 0 … N−1 ─▶ protocols.Trainer (--trainer), which meet at one address

If one rank dies the others cannot go on without it: all are ended, and `resume` starts them anew at the
newest good checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from slime.cluster.children import last_line
from slime.compat.install import install
from slime.compat.rollout_data import BatchHooks
from slime.config.sections import Config
from slime.engines.launch import free_port
from slime.errors import TrainerError
from slime.plugins.settings import plugin_settings
from slime.protocols import Resumed
from slime.trainers.build import build_trainer
from slime.types import Batch, TrainReport


class Rank:
    """One rank of a trainer, in a process of its own."""

    def __init__(self, config: Config, rank: int, world_size: int, address: str) -> None:
        if not config.cluster.train_gpus and config.cluster.trainer_priority == "idle":
            _step_back()
        install()
        self._trainer = build_trainer(config, rank=rank, world_size=world_size, address=address)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of `protocols.Trainer`."""
        return getattr(self._trainer, method)(*arguments)


def _step_back() -> None:
    """Let engines, server and all other tasks have the cores first; for the calling thread, and those it starts later.

    A task that wakes up preempts an idle one (SCHED_IDLE) at once, a merely nice one when its time slice ends. With
    four conversations without a pause on two cores, and new weights 2.5 times a second, the 99th percentile of the time
    to first token is 1.1 times a quiet run's with SCHED_IDLE and 2.4 times with niceness
    (`benchmarks/serving_while_training.py`). Linux may weigh sessions against each other before it looks at their
    processes (`autogroup`), which is why engines, server and trainer share one session, and only have process groups of
    their own (`slime.engines.die_with_parent`).
    """
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


RankActor: Any = ray.remote(num_cpus=0)(Rank)


class RankedLearner:
    """Implements `protocols.Learner` over one actor a rank.

    Args:
        gpus: what each rank may see; one entry a rank, empty = the CPU.
    """

    def __init__(self, config: Config, gpus: tuple[str, ...]) -> None:
        self._config = config
        self._save_dir = config.checkpoint.save_dir.resolve()
        self._gpus = gpus
        self._ranks: list[Any] = []
        self._hooks = BatchHooks(config.plugin, plugin_settings(config))
        self._step = 0

    async def resume(self) -> Resumed:
        await self.stop()
        address = f"tcp://127.0.0.1:{free_port()}"
        self._ranks = [
            RankActor.options(runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": gpus}}).remote(
                self._config, rank, len(self._gpus), address
            )
            for rank, gpus in enumerate(self._gpus)
        ]
        wanted = self._config.checkpoint.resume_from_checkpoint
        resumed: Resumed = await self._call("resume", self._save_dir, wanted)
        self._step = resumed.step
        return resumed

    async def train(self, batch: Batch) -> TrainReport:
        reference = ray.put(await self._hooks.apply(batch, self._step))
        report: TrainReport = await self._call("train", reference)
        self._step = report.step
        return report

    async def publish(self, version: int, adapter: str = "") -> Path:
        place = self._save_dir / "published" / adapter / f"version-{version}"
        weights_dir: Path = await self._call("publish", place, version, adapter)
        return weights_dir

    async def save(self) -> Path:
        checkpoint: Path = await self._call("save", self._save_dir)
        return checkpoint

    async def stop(self) -> None:
        """End every rank, whatever it is doing."""
        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call every rank and wait for all, which give the same; the first failure ends the call."""
        try:
            return (await asyncio.gather(*(rank.call.remote(method, *arguments) for rank in self._ranks)))[0]
        except RayTaskError as error:  # it raised: what it raised counts, our own errors as they are
            cause = error.cause
            raise TrainerError(f"{type(cause).__name__}: {last_line(cause)}") from error
        except RayError as error:
            raise TrainerError(f"a trainer rank died: {last_line(error)}") from error
