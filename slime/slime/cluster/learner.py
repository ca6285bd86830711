"""The trainer's ranks as actors, driven as one: every rank gets the whole batch and takes its share of it.

    RankedLearner (in the driver) ─▶ RankActor 0 … N−1 ─▶ protocols.Trainer (--trainer), which meet at one address

If one rank dies the others cannot go on without it: all are ended, and `resume` starts them anew at the
newest good checkpoint.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from slime.cluster.children import last_line
from slime.cluster.priority import step_back
from slime.compat.install import install
from slime.compat.rollout_data import load_batch_hooks
from slime.config import Config
from slime.engines.launch import free_port
from slime.errors import TrainerError
from slime.plugins.settings import plugin_settings
from slime.protocols import Resumed
from slime.trainers.build import build_trainer
from slime.trainers.checkpoint import publication_dir
from slime.types import Batch, TrainReport


class Rank:
    """One rank of a trainer, in a process of its own."""

    def __init__(self, config: Config, rank: int, world_size: int, address: str) -> None:
        if not config.cluster.train_gpus and config.cluster.trainer_priority == "idle":
            step_back()
        install()
        self._checkpoints = config.checkpoint
        self._trainer = build_trainer(config, rank=rank, world_size=world_size, address=address)

    def resume(self) -> Resumed:
        return self._trainer.resume(self._checkpoints.save_dir, self._checkpoints.resume_from_checkpoint)

    def train(self, batch: Batch) -> TrainReport:
        return self._trainer.train(batch)

    def publish(self, version: int, adapter: str) -> Path:
        """Write the weights for engines; returns their directory."""
        place = publication_dir(self._checkpoints.save_dir.resolve(), version, adapter)
        return self._trainer.publish(place, version, adapter)

    def save(self) -> Path:
        """Write a checkpoint; returns its directory."""
        return self._trainer.save(self._checkpoints.save_dir.resolve())


RankActor: Any = ray.remote(num_cpus=0)(Rank)


class RankedLearner:
    """Implements `protocols.Learner` over one actor a rank.

    Args:
        gpus: what each rank may see; one entry a rank, empty = the CPU.
    """

    def __init__(self, config: Config, gpus: tuple[str, ...]) -> None:
        self._config = config
        self._gpus = gpus
        self._ranks: list[Any] = []
        self._hooks = load_batch_hooks(config.plugin, plugin_settings(config))
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
        resumed: Resumed = (await self._all("resume"))[0]
        self._step = resumed.step
        return resumed

    async def train(self, batch: Batch) -> TrainReport:
        reference = ray.put(await self._hooks.apply(batch, self._step))
        report: TrainReport = (await self._all("train", reference))[0]
        self._step = report.step
        return report

    async def publish(self, version: int, adapter: str = "") -> Path:
        weights_dir: Path = (await self._all("publish", version, adapter))[0]
        return weights_dir

    async def save(self) -> Path:
        checkpoint: Path = (await self._all("save"))[0]
        return checkpoint

    async def stop(self) -> None:
        """End every rank, whatever it is doing."""
        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Call every rank and wait for all; the first failure ends the call."""
        try:
            return await asyncio.gather(*(getattr(rank, method).remote(*arguments) for rank in self._ranks))
        except RayTaskError as error:  # it raised: what it raised counts, our own errors as they are
            cause = error.cause
            raise TrainerError(f"{type(cause).__name__}: {last_line(cause)}") from error
        except RayError as error:
            raise TrainerError(f"a trainer rank died: {last_line(error)}") from error
