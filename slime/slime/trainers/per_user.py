"""Multi-LoRA training: one trainer swaps in the adapter and the optimizer state of a batch's user.

    batch of ada ─▶ is ada loaded? else users/ada/checkpoint-latest, or a new adapter ─▶ AdapterTrainer.train
                 ─▶ save ─▶ users/ada/checkpoint-5: adapter, moments, baseline, random state of hers alone

The model is in memory once. A user's adapter, optimizer, baseline and version are those of the user's checkpoint, so
nothing of one user reaches another by way of the trainer. Updates are counted twice: each user's own, and all of them
together, which are the updates of the run.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from slime.algorithms.advantages import MovingBaseline
from slime.errors import TrainerError
from slime.protocols import Resumed, Trainer
from slime.trainers.checkpoint import read_checkpoint, resumable_checkpoint
from slime.types import Batch, TrainReport

log = logging.getLogger(__name__)

USERS_DIR = "users"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@runtime_checkable
class AdapterTrainer(Trainer, Protocol):
    """A trainer of one LoRA adapter that can put it away and take up another.

    Attributes:
        step: updates made of the adapter that is loaded.
        consumed: by update, the turns it trained, since the last `save`.
        baseline: of the rewards, which skipped updates move too.
    """

    step: int
    consumed: dict[int, tuple[str, ...]]
    baseline: MovingBaseline

    def start_anew(self, adapter_name: str) -> None:
        """Begin with a new adapter at step 0."""
        ...

    def load(self, checkpoint: Path) -> int:
        """Go on from a checkpoint; returns its step."""
        ...


class UserTrainers:
    """A `protocols.Trainer` of many adapters.

    Args:
        trainer: of a LoRA run; nothing else uses it.

    Attributes:
        num_updates: of all users together.
    """

    def __init__(self, trainer: AdapterTrainer) -> None:
        self._trainer = trainer
        self._latest: dict[str, Path] = {}
        self._loaded = ""
        self._unsaved_pasts: dict[str, Mapping[str, Any]] = {}
        self.num_updates = 0

    def resume(self, save_dir: Path, wanted: str = "auto") -> Resumed:
        """Find every user's newest good checkpoint; what is asked for by name must be a directory of such."""
        self._loaded, self._latest, self.num_updates = "", {}, 0
        self._unsaved_pasts.clear()
        users_dir = (save_dir if wanted in ("auto", "none") else Path(wanted)).resolve() / USERS_DIR
        consumed: dict[int, tuple[str, ...]] = {}
        users: dict[str, tuple[int, int | None]] = {}
        if wanted != "none":
            for user_dir in sorted(users_dir.glob("*")):
                if (checkpoint := resumable_checkpoint(user_dir)) is None:
                    continue
                state, _ = read_checkpoint(checkpoint)
                consumed |= state.consumed
                users[user_dir.name] = state.step, state.version
                self._latest[user_dir.name] = checkpoint
        self.num_updates = max([*consumed, sum(step for step, _ in users.values())])
        return Resumed(self.num_updates, consumed, users_dir, users=users)

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
            self._unsaved_pasts[user] = self._trainer.baseline.state()
            return dataclasses.replace(report, step=self.num_updates)
        self.num_updates += 1
        self._trainer.consumed = {self.num_updates: self._trainer.consumed[self._trainer.step]}
        metrics = {**report.metrics, "train/user_updates": float(self._trainer.step)}
        return dataclasses.replace(report, step=self.num_updates, metrics=metrics)

    def publish(self, weights_dir: Path, version: int, adapter: str = "") -> Path:
        """Write the adapter of the user of that name for engines, under a number of its own."""
        self._switch_to(adapter)
        return self._trainer.publish(weights_dir, version, adapter)

    def save(self, checkpoint_dir: Path) -> Path:
        """Write a checkpoint of the user who was trained last; returns its directory."""
        checkpoint = self._trainer.save(Path(checkpoint_dir) / USERS_DIR / self._loaded)
        self._latest[self._loaded] = checkpoint
        self._unsaved_pasts.pop(self._loaded, None)
        return checkpoint

    def _switch_to(self, user: str) -> None:
        if user == self._loaded:
            return
        self._loaded = ""  # a load that fails half-way leaves no state that is taken for whole
        self._trainer.start_anew(user)
        if user in self._latest:
            self._trainer.load(self._latest[user])
        if user in self._unsaved_pasts:
            self._trainer.baseline.restore(self._unsaved_pasts[user])
        self._loaded = user
