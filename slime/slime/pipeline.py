"""The training side of the loop: two tasks around a queue, and what is published in between.

    collect                                    train
    rollout ─▶ SampleGroup ─▶ SampleQueue ─▶ take 16 effective samples ─▶ Trainer.train
      (claims, judges)          │  bounded       ─▶ checkpoint ─▶ engines serve it ─▶ store: trained by step N
                                └─ leases renewed while samples wait

The checkpoint is the moment an update becomes true. Before it, a crash leaves the turns untrained and
they are taken again; after it, `resume` tells the store what the checkpoint says it consumed, so no turn
is lost and none is trained twice. The version number of the weights is the number of updates in them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

from slime.config import CheckpointConfig, RolloutConfig
from slime.data.sample_queue import SampleQueue, Taken
from slime.errors import LeaseLost, TrainerError
from slime.monitor import Monitor
from slime.protocols import Learner
from slime.store import Store
from slime.types import Batch, SampleGroup, TurnState

log = logging.getLogger(__name__)


Rollout = Callable[[], AsyncIterator[SampleGroup]]
Publish = Callable[[Path, int], Awaitable[None]]
"""Have every engine serve a weights directory as a version; returns when they do."""


class Follower(Protocol):
    """Whoever the samples come from, where it wants to know what became of them."""

    def metrics(self) -> Mapping[str, float]:
        """Figures to record with the update that was just made."""
        ...

    async def saved(self, step: int, group_ids: tuple[str, ...]) -> Mapping[str, float]:
        """The checkpoint of `step` is served, and it is the first to hold these groups; further figures."""
        ...


class Pipeline:
    """Runs collecting and training until `num_rollout` updates are made, or for ever.

    Args:
        rollout: opens the stream of samples; opened again if a trainer had to be restarted.
        publish: called right after the step that made the weights.
        follower: told what was trained and saved.
        queue: between collecting and training; one of the configured size unless given.
        until_drained: nothing new will be stored: end when all of it is trained or excluded; the last update may
            take fewer samples than the others.
        judge_metrics: what the judge did since it was asked last, as `judge/…` figures.
    """

    def __init__(
        self,
        *,
        store: Store,
        rollout: Rollout,
        learner: Learner,
        publish: Publish,
        monitor: Monitor,
        owner: str,
        rollout_config: RolloutConfig,
        checkpoint_config: CheckpointConfig,
        follower: Follower | None = None,
        queue: SampleQueue | None = None,
        until_drained: bool = False,
        judge_metrics: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.version = 0
        self._store = store
        self._rollout = rollout
        self._learner = learner
        self._publish = publish
        self._monitor = monitor
        self._owner = owner
        self._config = rollout_config
        self._save_interval = checkpoint_config.save_interval
        usual = SampleQueue(rollout_config.queue_capacity, rollout_config.max_staleness)
        self._queue = usual if queue is None else queue
        self._in_training: tuple[str, ...] = ()
        self._unsaved: dict[int, tuple[str, ...]] = {}
        self._num_stale = 0
        self._follower = follower
        self._num_in_training = 0
        self._unsaved_groups: list[str] = []
        self._until_drained = until_drained
        self._judge_metrics = judge_metrics
        self._last_sample = time.monotonic()
        self._restarts = 0

    async def run(self) -> None:
        """Until done. Raises what a loop cannot go on after."""
        released = await self._store.release(self._owner)
        if released:
            log.info("leases of an earlier run released turns=%d", released)
        await self._resume()
        side_tasks = [
            asyncio.create_task(self._collect(), name="collect"),
            asyncio.create_task(self._keep_leases(), name="leases"),
        ]
        training = asyncio.create_task(self._train(), name="train")
        try:
            await asyncio.wait([training, *side_tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in (training, *side_tasks):
                if task.done():
                    task.result()
        finally:
            for task in (training, *side_tasks):
                task.cancel()
            await asyncio.gather(training, *side_tasks, return_exceptions=True)
            await self._store.release(self._owner)

    # ---- collect

    async def _collect(self) -> None:
        async for group in self._rollout():
            await self._queue.put(group)
            self._last_sample = time.monotonic()

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._config.lease_s / 3)
            held = (*self._queue.turn_ids, *self._in_training, *self._not_accounted)
            if held:
                try:
                    await self._store.renew(held, self._owner, self._config.lease_s)
                except LeaseLost as error:
                    log.warning("lease lost error=%s", error)

    # ---- train

    async def _train(self) -> None:
        while not self._config.num_rollout or self.version < self._config.num_rollout:
            waited = time.monotonic()
            taken = await self._take()
            if taken is None:
                reasons = "; ".join(f"{number} {why}" for why, number in (await self._store.exclusions()).items())
                log.info("nothing is left to train step=%d left_out=%s", self.version, reasons or "none")
                if self._unsaved:
                    await self._make_true(self.version)
                return
            if not taken.groups:
                continue
            batch = Batch(taken.groups)
            self._in_training = batch.turn_ids
            self._num_in_training = len(batch.samples)
            try:
                await self._step(batch, time.monotonic() - waited)
                self._restarts = 0
            except TrainerError as error:
                await self._start_over(error, taken.groups)
            finally:
                self._in_training = ()
                self._num_in_training = 0

    async def _take(self) -> Taken | None:
        """The next batch, once there is one; None when there will never be one.

        Stale samples met on the way are excluded in the store. A turn that a person has spoken of since it was judged
        is given up with its group, and comes again with a new verdict.
        """
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S if self._until_drained else None):
                    taken = await self._queue.take(self._config.rollout_batch_size, self.version)
                break
            except TimeoutError:
                if await self._is_drained():
                    taken = await self._queue.take_rest(self.version)
                    if not taken.groups and not taken.stale:
                        return None
                    break
        self._in_training = tuple(turn_id for group in taken.groups for turn_id in _turn_ids(group))
        for group in taken.stale:
            self._num_stale += len(group.samples)
            reason = f"stale: older than {self._config.max_staleness} updates when taken"
            await self._store.exclude(_turn_ids(group), reason)
        changed = set(await self._store.reconsider(self._in_training, self._owner)) if taken.groups else set()
        if not changed:
            return taken
        log.info("turns with new feedback go back to the judge turns=%d", len(changed))
        await self._queue.put_back(tuple(group for group in taken.groups if changed.isdisjoint(_turn_ids(group))))
        return Taken((), taken.stale)

    async def _is_drained(self) -> bool:
        """Whether every turn of the store is in the queue, trained, or will never be.

        A rollout may keep back a judged turn for good; it is not waited for longer than a lease lasts.
        """
        counts = await self._store.counts()
        if counts[TurnState.READY] or counts[TurnState.CLAIMED]:
            return False
        is_idle = time.monotonic() - self._last_sample > self._config.lease_s
        return is_idle or counts[TurnState.JUDGED] <= len({*self._queue.turn_ids, *self._not_accounted})

    async def _step(self, batch: Batch, waited_s: float) -> None:
        now = self.version
        staleness = [self._queue.version_of(sample, now) - sample.policy_version for sample in batch.samples]
        began = time.monotonic()
        report = await self._learner.train(batch)
        trained = time.monotonic()
        for turn_id, reason in report.left_out.items():
            await self._store.exclude([turn_id], f"cannot be trained: {reason}")
        turn_ids = tuple(turn_id for turn_id in batch.turn_ids if turn_id not in report.left_out)
        if report.skipped:
            await self._store.exclude(turn_ids, f"update skipped: {report.skipped}")
            log.error("update skipped step=%d reason=%r turns=%d", report.step, report.skipped, len(batch.turn_ids))
            return
        self._unsaved[report.step] = turn_ids
        self._unsaved_groups += [group.group_id for group in batch.groups]
        metrics = dict(report.metrics) | {
            "train/seconds": trained - began,
            "train/samples": len(batch.samples),
            "queue/wait_s": waited_s,
            "queue/staleness_mean": sum(staleness) / len(staleness),
            "queue/staleness_max": max(staleness),
            "queue/stale_total": self._num_stale,
        }
        is_last = report.step == self._config.num_rollout
        try:
            if report.step % self._save_interval == 0 or is_last:
                metrics |= await self._make_true(report.step)
            metrics |= await self._follow(report.step)
            metrics |= self._judge_metrics()
            self.version = report.step
            self._queue.trained(batch.groups)
        finally:  # interrupted here, a run may find the update in its checkpoint, and then misses it in the figures
            self._monitor.record(report.step, metrics | {"queue/length": len(self._queue)})

    async def _make_true(self, step: int) -> dict[str, float]:
        """Write a checkpoint, have it served, and tell the store what it consumed; returns how long that took."""
        began = time.monotonic()
        weights_dir = await self._learner.save()
        saved = time.monotonic()
        await self._publish(weights_dir, step)
        metrics = {"weights/save_s": saved - began, "weights/publish_s": time.monotonic() - saved}
        for consumed_at, turn_ids in sorted(self._unsaved.items()):
            await self._store.mark_trained(turn_ids, consumed_at)
        self._unsaved.clear()
        return metrics

    @property
    def _not_accounted(self) -> tuple[str, ...]:
        """Turns of updates that no checkpoint holds yet."""
        return tuple(turn_id for turn_ids in self._unsaved.values() for turn_id in turn_ids)

    async def _follow(self, step: int) -> dict[str, float]:
        if self._follower is None:
            return {}
        metrics = dict(self._follower.metrics())
        if not self._unsaved:  # a checkpoint was just written
            group_ids, self._unsaved_groups = tuple(self._unsaved_groups), []
            metrics |= await self._follower.saved(step, group_ids)
        return metrics

    @property
    def admitted_version(self) -> int:
        """The version that a turn is compared with before it is judged; too old, it is not."""
        return self._queue.admitted_version(self.version)

    @property
    def num_pending(self) -> int:
        """Samples that wait for the trainer or that it is training: what is sampled now is trained after them."""
        return len(self._queue) + self._num_in_training

    # ---- beginnings

    async def _resume(self) -> None:
        """Bring store, engines and trainer to the same step: the newest checkpoint's."""
        resumed = await self._learner.resume()
        for step, turn_ids in sorted(resumed.consumed.items()):
            await self._store.mark_trained(turn_ids, step)
        undone = await self._store.rewind(resumed.step)
        if resumed.weights_dir is not None:
            await self._publish(resumed.weights_dir, resumed.step)
        for weights_dir, version in resumed.adapters.values():
            await self._publish(weights_dir, version)
        self._queue.restore({name: version for name, (_, version) in resumed.adapters.items()})
        self.version = resumed.step
        self._unsaved.clear()
        self._unsaved_groups.clear()
        log.info("training from step=%d turns_undone=%d", resumed.step, undone)

    async def _start_over(self, error: TrainerError, groups: tuple[SampleGroup, ...]) -> None:
        """After a trainer died: its batch comes first again, unless the checkpoint already holds it."""
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            raise error
        log.error("trainer failed, starting it again attempt=%d error=%s", self._restarts, error)
        await self._resume()
        trained = {state_turn for group in groups for state_turn in await self._trained(group)}
        await self._queue.put_back(
            tuple(g for g in groups if not any(t in trained for s in g.samples for t in s.turn_ids))
        )

    async def _trained(self, group: SampleGroup) -> list[str]:
        return [turn_id for turn_id in _turn_ids(group) if await self._store.trained_at(turn_id) is not None]


def _turn_ids(group: SampleGroup) -> list[str]:
    return [turn_id for sample in group.samples for turn_id in sample.turn_ids]


_LOOK_EVERY_S = 1.0
"""How often a run that ends when nothing is left looks whether that is so."""

_MAX_RESTARTS = 3
"""Trainer failures in a row after which the run gives up."""
