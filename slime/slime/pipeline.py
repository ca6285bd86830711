"""The training loop: one task fills a bounded queue from a rollout, one takes batches from it and trains them.

    collect                                    train
    Rollout ─▶ SampleGroup ─▶ SampleQueue ─▶ take 16 effective samples ─▶ Learner.train
                                │  bounded       ─▶ every --publish-interval: a version, served    (publisher.py)
                                │                ─▶ every --save-interval: checkpoint ─▶ store: trained by step N
                                └─ leases renewed while samples wait

The checkpoint commits an update. A crash before it leaves the turns untrained, and they are sampled again; after it,
`resume` reports the turns that the checkpoint consumed to the store, so every turn is trained exactly once in the line
of one checkpoint. Weights are served before they are committed: a version that a crash undid is never given out again.

A run ends when its updates are made, when the rollout ends or when the store is drained: the last update takes what
there is, and a checkpoint holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slime.config.sections import CheckpointConfig, RolloutConfig
from slime.data.sample_queue import SampleQueue, Taken
from slime.errors import LeaseLost, TrainerError
from slime.monitor import Monitor
from slime.progress import Progress
from slime.protocols import Learner, Rollout
from slime.publisher import Publisher
from slime.run_watch import STALE, RunWatch
from slime.store import Store
from slime.types import Batch, Sample, SampleGroup, TrainReport, TurnState

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """Collects and trains until `num_rollout` updates are made, nothing is left, or it is cancelled.

    Attributes:
        publisher: has the engines serve what was trained.
        progress: of this run; written here and by the publisher.
        owner: the name that leases are held under.
        by_source: each source has weights of its own, so that a batch is of one source.
        until_drained: nothing new will be stored: end when all of it is trained or excluded; the last update may
            take fewer samples than the others.
        ends_when_stalled: raise `RunStalled` where samples are made and none is trained; otherwise say so and go on.
        judge_metrics: what the judge did since the last call, as `judge/…` figures.
    """

    store: Store
    rollout: Rollout
    learner: Learner
    publisher: Publisher
    progress: Progress
    monitor: Monitor
    owner: str
    rollout_config: RolloutConfig
    checkpoint_config: CheckpointConfig
    by_source: bool = False
    until_drained: bool = False
    ends_when_stalled: bool = False
    judge_metrics: Callable[[], Mapping[str, float]] = dict

    def __post_init__(self) -> None:
        config = self.rollout_config
        capacity, max_staleness = config.queue_capacity, config.max_staleness
        self._queue = SampleQueue(capacity, max_staleness, self._staleness, by_source=self.by_source)
        self._watch = RunWatch(
            self.store,
            config,
            self.monitor.run_dir,
            self.progress,
            left_out=self.rollout.left_out,
            ends_run=self.ends_when_stalled,
        )
        self._in_training: tuple[str, ...] = ()
        self._unsaved: dict[int, tuple[str, ...]] = {}
        self._unsaved_groups: list[str] = []
        self._is_published = True
        self._num_stale = 0
        self._last_sample = time.monotonic()
        self._restarts = 0

    async def run(self) -> None:
        """Run until the updates are made or nothing is left. Raises the first error that no task can recover from."""
        self._watch.say("starting")
        if released := await self.store.release(self.owner):
            log.info("leases of an earlier run released turns=%d", released)
        try:
            await self._resume()
            await self._run_tasks()
            self._watch.say("done")
        except asyncio.CancelledError:
            self._watch.say("stopped")
            raise
        except Exception as error:
            self._watch.say("failed", str(error))
            raise
        finally:
            await self.store.release(self.owner)

    async def _run_tasks(self) -> None:
        training = asyncio.create_task(self._train(), name="train")
        side_tasks = {
            asyncio.create_task(self._collect(), name="collect"),
            asyncio.create_task(self._keep_leases(), name="leases"),
            asyncio.create_task(self._watch.run(), name="stalls"),
        }
        pending = {training, *side_tasks}
        try:
            while not training.done():  # a rollout that ends leaves its last samples to be trained
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (training, *side_tasks):
                task.cancel()
            await asyncio.gather(training, *side_tasks, return_exceptions=True)

    # ---- collect

    async def _collect(self) -> None:
        async with contextlib.aclosing(self.rollout.stream()) as groups:
            async for group in groups:
                await self._queue.put(group)
                self._count()
                self._last_sample = time.monotonic()
        log.info("the rollout has ended, its last samples are trained samples=%d", self.progress.num_pending)
        await self._queue.end()

    def _count(self, num_training: int | None = None) -> None:
        """Bring the number of pending samples up to date."""
        self.progress.num_waiting = len(self._queue)
        if num_training is not None:
            self.progress.num_training = num_training

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self.rollout_config.lease_s / 3)
            if held := (*self._queue.turn_ids, *self._in_training, *self._not_accounted):
                try:
                    await self.store.renew(held, self.owner, self.rollout_config.lease_s)
                except LeaseLost as error:
                    log.warning("lease lost error=%s", error)

    # ---- train

    async def _train(self) -> None:
        progress = self.progress
        while not self.rollout_config.num_rollout or progress.step < self.rollout_config.num_rollout:
            waited = time.monotonic()
            taken = await self._take()
            if taken is None:
                reasons = "; ".join(f"{number} {why}" for why, number in (await self.store.exclusions()).items())
                log.info("nothing is left to train step=%d left_out=%s", progress.step, reasons or "none")
                break
            if not taken.groups:
                continue
            batch = Batch(taken.groups)
            try:
                await self._step(batch, time.monotonic() - waited)
                self._restarts = 0
            except TrainerError as error:
                await self._start_over(error, taken.groups)
            finally:
                self._in_training = ()
                self._count(0)
        if not self._is_published:
            await self.publisher.publish()
        if self._unsaved:
            await self._save()

    async def _take(self) -> Taken | None:
        """The next batch, once there is one; None when there will never be one.

        Stale samples met on the way are excluded in the store. A turn that a person has spoken of since it was judged
        is given up with its group, and comes again with a new verdict.
        """
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S if self.until_drained else None):
                    taken = await self._queue.take(self.rollout_config.rollout_batch_size)
                break
            except TimeoutError:
                if await self._is_drained():
                    taken = await self._queue.take_rest()
                    break
        if not taken.groups and not taken.stale:
            return None
        batch, stale = Batch(taken.groups), Batch(taken.stale)
        self._in_training = batch.turn_ids
        self._count(len(batch.samples))
        if taken.stale:
            self._num_stale += len(stale.samples)
            self._watch.dropped(STALE, stale)
            reason = f"stale: older than {self.rollout_config.max_staleness} updates when taken"
            await self.store.exclude(stale.turn_ids, reason)
        changed = set(await self.store.reconsider(self._in_training, self.owner)) if taken.groups else set()
        if not changed:
            return taken
        log.info("turns with new feedback go back to the judge turns=%d", len(changed))
        await self._queue.put_back(tuple(group for group in taken.groups if changed.isdisjoint(group.turn_ids)))
        self._count(0)
        return Taken((), taken.stale)

    async def _is_drained(self) -> bool:
        """Whether every turn of the store is in the queue, trained, or will never be.

        A rollout may keep back a judged turn for good; it is not waited for longer than a lease lasts.
        """
        counts = await self.store.counts()
        if counts[TurnState.READY] or counts[TurnState.CLAIMED]:
            return False
        is_idle = time.monotonic() - self._last_sample > self.rollout_config.lease_s
        return is_idle or counts[TurnState.JUDGED] <= len({*self._queue.turn_ids, *self._not_accounted})

    async def _step(self, batch: Batch, waited_s: float) -> None:
        staleness = [self._staleness(sample) for sample in batch.samples]
        began = time.monotonic()
        report = await self.learner.train(batch)
        trained = time.monotonic()
        for turn_id, reason in report.left_out.items():
            await self.store.exclude([turn_id], f"cannot be trained: {reason}")
        turn_ids = tuple(turn_id for turn_id in batch.turn_ids if turn_id not in report.left_out)
        if report.skipped:
            await self._skipped(batch, turn_ids, report)
            return
        line = self._queue.line_of(batch.samples[0])
        self.publisher.versions.trained(line)
        self._is_published = False
        self._unsaved[report.step] = turn_ids
        self._unsaved_groups += [group.group_id for group in batch.groups]
        self._watch.trained(len(batch.samples))
        metrics = dict(report.metrics) | {
            "train/seconds": trained - began,
            "train/samples": len(batch.samples),
            "queue/wait_s": waited_s,
            "queue/staleness_mean": sum(staleness) / len(staleness),
            "queue/staleness_max": max(staleness),
            "queue/stale_total": self._num_stale,
        }
        is_last = report.step == self.rollout_config.num_rollout
        try:
            if report.step % self.checkpoint_config.publish_interval == 0 or is_last:
                metrics |= await self.publisher.publish(line)
                self._is_published = True
            if report.step % self.checkpoint_config.save_interval == 0 or is_last:
                metrics |= await self._save(line)
            metrics |= {**await self.rollout.updated(report.step), **self.judge_metrics()}
            self.progress.step = report.step
            self._watch.say("running")
        finally:  # interrupted here, a run may find the update in its checkpoint, and then misses it in the figures
            self.monitor.record(report.step, metrics | {"queue/length": len(self._queue)})

    async def _skipped(self, batch: Batch, turn_ids: tuple[str, ...], report: TrainReport) -> None:
        await self.store.exclude(turn_ids, f"update skipped: {report.skipped}")
        self._watch.dropped("update skipped", batch)
        log.error("update skipped step=%d reason=%r turns=%d", report.step, report.skipped, len(batch.turn_ids))

    async def _save(self, line: str = "") -> dict[str, float]:
        """Write a checkpoint, and tell store and rollout what it holds; returns how long that took."""
        began = time.monotonic()
        await self.learner.save()
        self.publisher.versions.saved(line)
        saved = time.monotonic()
        for consumed_at, turn_ids in sorted(self._unsaved.items()):
            await self.store.mark_trained(turn_ids, consumed_at)
        step, group_ids = max(self._unsaved, default=self.progress.step), tuple(self._unsaved_groups)
        self._unsaved.clear()
        self._unsaved_groups.clear()
        await self.rollout.saved(step, group_ids)
        return {"weights/save_s": saved - began}

    def _staleness(self, sample: Sample) -> int:
        return self.publisher.staleness(sample, self._queue.line_of(sample))

    @property
    def _not_accounted(self) -> tuple[str, ...]:
        """Turns of updates that no checkpoint holds yet."""
        return tuple(turn_id for turn_ids in self._unsaved.values() for turn_id in turn_ids)

    # ---- beginnings

    async def _resume(self) -> None:
        """Bring store, engines and trainer to the same step: the newest checkpoint's."""
        resumed = await self.learner.resume()
        for step, turn_ids in sorted(resumed.consumed.items()):
            await self.store.mark_trained(turn_ids, step)
        undone = await self.store.rewind(resumed.step)
        await self.publisher.resume(resumed)
        self._is_published = True
        self.progress.step = resumed.step
        self._unsaved.clear()
        self._unsaved_groups.clear()
        log.info("training from step=%d version=%d turns_undone=%d", resumed.step, self.progress.version, undone)

    async def _start_over(self, error: TrainerError, groups: tuple[SampleGroup, ...]) -> None:
        """After a trainer died: its batch comes first again, unless the checkpoint already holds it.

        Turns of updates that no checkpoint holds are let go of: the rollout finds them, judged, and gives them again.
        """
        self._restarts += 1
        if self._restarts > _MAX_RESTARTS:
            raise error
        log.error("trainer failed, starting it again attempt=%d error=%s", self._restarts, error)
        lost = set(self._not_accounted)
        await self._resume()
        held = Batch(groups).turn_ids
        await self.store.release(self.owner, sorted(lost.difference(held)))
        trained = {turn_id for turn_id in held if await self.store.trained_at(turn_id) is not None}
        await self._queue.put_back(tuple(group for group in groups if trained.isdisjoint(group.turn_ids)))


_LOOK_EVERY_S = 1.0
"""How often a run that ends when nothing is left looks whether that is so."""

_MAX_RESTARTS = 3
"""Trainer failures in a row after which the run gives up."""
