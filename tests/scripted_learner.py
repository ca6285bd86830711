"""A trainer that learns nothing and forgets nothing: for tests and dry runs of everything around a trainer.

    ScriptedLearner.train(batch) ─▶ step + 1, the batch's turns noted ─▶ save ─▶ save_dir/checkpoint-<step>/state.json
                                                                      ─▶ publish ─▶ save_dir/published/version-<n>/

It keeps the contract of the real one: what was not saved is gone after `resume`, and a checkpoint says
which turns the updates since the checkpoint before it consumed. Its weights are a hash of every update that was made
on the way to them, so two publications are equal where, and only where, a real trainer's would be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from slime.errors import TrainerError
from slime.protocols import Resumed
from slime.types import Batch, TrainReport
from slime.weights.directories import atomic_directory


class ScriptedLearner:
    """Implements `protocols.Learner` without a model.

    Args:
        die_in_train, die_after_save: steps at which it dies once, before training or right after saving.
        skip: reasons by step; that update is reported as skipped, once.

    Attributes:
        trained: the turns of every update made, in order, those lost with a death included.
        num_deaths: faults that really fired.
    """

    def __init__(
        self,
        save_dir: Path,
        *,
        die_in_train: Collection[int] = (),
        die_after_save: Collection[int] = (),
        skip: Mapping[int, str] | None = None,
    ) -> None:
        self.trained: list[tuple[int, tuple[str, ...]]] = []
        self.num_deaths = 0
        self._save_dir = save_dir
        self._die_in_train = set(die_in_train)
        self._die_after_save = set(die_after_save)
        self._skip = dict(skip or {})
        self._step = 0
        self._consumed: dict[int, tuple[str, ...]] = {}
        self._weights = ""
        self._version: int | None = 0

    async def resume(self) -> Resumed:
        saved = sorted(self._save_dir.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        self._consumed = {}
        if not saved:
            self._step, self._weights, self._version = 0, "", 0
            return Resumed(0, {}, None)
        state = json.loads((saved[-1] / "state.json").read_text(encoding="utf-8"))
        self._step = state["step"]
        consumed = {int(step): tuple(turn_ids) for step, turn_ids in state["consumed"].items()}
        self._weights, self._version = state.get("weights", ""), state.get("version")
        return Resumed(self._step, consumed, saved[-1], self._version)

    async def train(self, batch: Batch) -> TrainReport:
        step = self._step + 1
        if step in self._die_in_train:
            self._die_in_train.remove(step)
            self._die(f"scripted death while training step {step}")
        if reason := self._skip.pop(step, ""):
            return TrainReport(self._step, {}, skipped=reason)
        self._step = step
        self._consumed[step] = batch.turn_ids
        update = f"{self._weights} {step} {' '.join(batch.turn_ids)}"
        self._weights = hashlib.blake2b(update.encode(), digest_size=16).hexdigest()
        self.trained.append((step, batch.turn_ids))
        rewards = [sample.values["reward"] for sample in batch.samples]
        return TrainReport(step, {"reward/mean": sum(rewards) / len(rewards)})

    async def publish(self, version: int, adapter: str = "") -> Path:
        self._version = version
        weights_dir = self._save_dir / "published" / f"version-{version}"
        with atomic_directory(weights_dir) as partial_dir:
            (partial_dir / "weights").write_text(self._weights, encoding="utf-8")
        return weights_dir

    async def save(self) -> Path:
        checkpoint = self._save_dir / f"checkpoint-{self._step}"
        state = {"step": self._step, "consumed": self._consumed, "weights": self._weights, "version": self._version}
        with atomic_directory(checkpoint) as partial_dir:
            (partial_dir / "state.json").write_text(json.dumps(state), encoding="utf-8")
        self._consumed = {}
        if self._step in self._die_after_save:
            self._die_after_save.remove(self._step)
            self._die(f"scripted death after saving step {self._step}")
        return checkpoint

    def _die(self, why: str) -> None:
        self.num_deaths += 1
        raise TrainerError(why)
