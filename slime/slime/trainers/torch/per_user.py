"""One adapter for each user, trained by one trainer: whoever's batch it is, that user's state is loaded first.

    batch of ada ─▶ is ada loaded? else users/ada/checkpoint-latest, or a new adapter ─▶ TorchTrainer.train
                 ─▶ save ─▶ users/ada/checkpoint-5: adapter, moments, baseline, random state of hers alone

The model is in memory once. A user's adapter, optimizer, baseline and version are what that user's checkpoint holds,
so nothing of one user can reach another by way of the trainer, and a run resumes every user where they were. Updates
are counted twice: each user's own, and all of them together, which are the updates of the run.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slime.config.sections import CheckpointConfig
from slime.errors import TrainerError
from slime.protocols import Resumed
from slime.trainers.torch.checkpoint import read_checkpoint, resumable_checkpoint
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, TrainReport

log = logging.getLogger(__name__)

USERS_DIR = "users"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class UserTrainers:
    """A trainer of many adapters, as a rank drives it: resume, and then train and save by turns.

    Args:
        trainer: of a LoRA run; it is this object's alone.

    Attributes:
        num_updates: of all users together.
    """

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._save_dir = Path()
        self._latest: dict[str, Path] = {}
        self._loaded = ""
        self._unsaved_pasts: dict[str, Mapping[str, Any]] = {}
        self.num_updates = 0

    def resume(self, config: CheckpointConfig) -> Resumed:
        """Find every user's newest good checkpoint; what is asked for by name must be a directory of such."""
        self._loaded, self._latest, self.num_updates = "", {}, 0
        self._unsaved_pasts.clear()
        self._save_dir = config.save_dir.resolve()
        consumed: dict[int, tuple[str, ...]] = {}
        users: dict[str, tuple[int, int | None]] = {}
        if config.resume_from_checkpoint not in ("auto", "none"):
            self._save_dir = Path(config.resume_from_checkpoint).resolve()
        if config.resume_from_checkpoint != "none":
            for user_dir in sorted((self._save_dir / USERS_DIR).glob("*")):
                if (checkpoint := resumable_checkpoint(user_dir)) is None:
                    continue
                state, _ = read_checkpoint(checkpoint)
                consumed |= state.consumed
                users[user_dir.name] = state.step, state.version
                self._latest[user_dir.name] = checkpoint
        self.num_updates = max([*consumed, sum(step for step, _ in users.values())])
        return Resumed(self.num_updates, consumed, self._save_dir / USERS_DIR, users=users)

    def train(self, batch: Batch) -> TrainReport:
        """Make one update of one user's adapter; the report counts the updates of all.

        Raises:
            TrainerError: the batch is of several users, or of one who cannot have a directory; or as the trainer's.
        """
        users = {sample.source for sample in batch.samples}
        if len(users) != 1:
            raise TrainerError(f"a batch trains one user's adapter, and this one is of {len(users)}")
        (user,) = users
        if not _NAME.fullmatch(user):
            raise TrainerError(f"source {user!r} names no user: give letters, digits, dots and dashes")
        self._switch_to(user)
        report = self._trainer.train(batch)
        if report.skipped:
            self._unsaved_pasts[user] = self._trainer.past_rewards()
            return dataclasses.replace(report, step=self.num_updates)
        self.num_updates += 1
        self._trainer.consumed = {self.num_updates: self._trainer.consumed[self._trainer.step]}
        metrics = {**report.metrics, "train/user_updates": float(self._trainer.step)}
        return dataclasses.replace(report, step=self.num_updates, metrics=metrics)

    def publish(self, weights_dir: Path, version: int, user: str) -> Path:
        """Write a user's adapter for engines, under a number of its own."""
        self._switch_to(user)
        return self._trainer.publish(weights_dir, version)

    def save(self, checkpoint_dir: Path) -> Path:
        """Write a checkpoint of the user who was trained last; returns its directory."""
        checkpoint = self._trainer.save(Path(checkpoint_dir) / USERS_DIR / self._loaded)
        self._latest[self._loaded] = checkpoint
        self._unsaved_pasts.pop(self._loaded, None)
        return checkpoint

    def _switch_to(self, user: str) -> None:
        if user == self._loaded:
            return
        self._loaded = ""  # should loading fail half-way, nobody's state is taken for whole
        self._trainer.start_anew(user)
        if user in self._latest:
            self._trainer.load(self._latest[user])
        if user in self._unsaved_pasts:
            self._trainer.recall(self._unsaved_pasts[user])
        self._loaded = user
