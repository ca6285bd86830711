"""Backpressure between collecting and training: a bounded queue that knows how old its samples are.

    collect ──put (waits while full)──▶ [oldest … newest] ──take (waits for enough)──▶ train
            ──end (nothing more comes)─▶                   ──take (what is left)────▶

What is trained is never more than `max_staleness` updates older than the trainer. Admission keeps it
so: a full queue holds the collector back, and turns wait in the store instead. What nevertheless grew
too old while it waited is handed back by `take`, to be accounted for, and is not trained.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slime.types import Sample, SampleGroup

Staleness = Callable[[Sample], int]
"""Updates by which the weights that made a sample are older than those being trained."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take` found: `groups` to train on, oldest first, and the `stale` ones that are too old for it."""

    groups: tuple[SampleGroup, ...]
    stale: tuple[SampleGroup, ...]


class SampleQueue:
    """A first-in-first-out queue of sample groups, bounded in samples.

        put ─▶ [ada bob ada ada bob] ─ by source: the one that first has enough ─▶ take ─▶ [ada ada ada]

    Where each source has weights of its own, a batch is of one source. The capacity is shared: where it is full and no
    source has enough for a batch, the longest line is taken as it is, so that many users who say little cannot block
    each other.

    Args:
        capacity: samples that may wait; `put` waits while there are that many.
        max_staleness: the staleness that a sample may have when it is taken.
        staleness: of a sample that waits, in updates; nothing is ever stale unless given.
        by_source: whether each source has weights of its own.
    """

    def __init__(
        self,
        capacity: int,
        max_staleness: int,
        staleness: Staleness = lambda sample: 0,
        *,
        by_source: bool = False,
    ) -> None:
        self.capacity = capacity
        self.max_staleness = max_staleness
        self._staleness = staleness
        self._by_source = by_source
        self._groups: deque[SampleGroup] = deque()
        self._changed = asyncio.Condition()
        self._is_ended = False

    def __len__(self) -> int:
        """Samples that wait."""
        return sum(len(group.samples) for group in self._groups)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """The turns behind the samples that wait; their leases must be kept alive."""
        return tuple(turn_id for group in self._groups for turn_id in group.turn_ids)

    def line_of(self, sample: Sample) -> str:
        """Whose weights a sample trains; empty: the shared ones."""
        return sample.source if self._by_source else ""

    async def put(self, group: SampleGroup) -> None:
        """Append a group; waits while the queue is full. A group larger than the queue is admitted to an empty one."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._groups or len(self) + len(group.samples) <= self.capacity)
            self._groups.append(group)
            self._changed.notify_all()

    async def put_back(self, groups: tuple[SampleGroup, ...]) -> None:
        """Return groups that were taken and not trained; they come first again, even if the queue is full."""
        async with self._changed:
            self._groups.extendleft(reversed(groups))
            self._changed.notify_all()

    async def end(self) -> None:
        """Nothing more will be put: `take` does not wait for it any more."""
        async with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    async def take(self, num_samples: int) -> Taken:
        """Wait for at least `num_samples` fresh samples of one line and take just enough whole groups for them.

        Returns:
            Early, with stale groups and no others, as soon as there are stale ones to account for. After the end what
            is left, however little, and nothing when nothing is.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._is_ended or any(map(self._is_stale, self._groups)) or self._due(num_samples) is not None
            )
            stale = self._pull(group for group in self._groups if self._is_stale(group))
            due = self._due(num_samples)
            line = [group for group in self._groups if self.line_of(group.samples[0]) == due]
            before = itertools.accumulate((len(group.samples) for group in line), initial=0)
            groups = self._pull(group for group, count in zip(line, before, strict=False) if count < num_samples)
            self._changed.notify_all()
            return Taken(groups, stale)

    async def take_rest(self) -> Taken:
        """What there is of one line, however little, without waiting: for when nothing more will come."""
        return await self.take(max(self._waiting().values())) if self._groups else Taken((), ())

    def _due(self, num_samples: int) -> str | None:
        """The line that a batch is taken of now; None if no line has enough."""
        if not self._groups:
            return None
        [(longest, count)] = self._waiting().most_common(1)
        return longest if count >= num_samples or len(self) >= self.capacity or self._is_ended else None

    def _waiting(self) -> Counter[str]:
        """Samples in each line."""
        waiting: Counter[str] = Counter()
        for group in self._groups:
            waiting[self.line_of(group.samples[0])] += len(group.samples)
        return waiting

    def _pull(self, groups: Iterable[SampleGroup]) -> tuple[SampleGroup, ...]:
        pulled = tuple(groups)
        gone = set(map(id, pulled))
        self._groups = deque(group for group in self._groups if id(group) not in gone)
        return pulled

    def _is_stale(self, group: SampleGroup) -> bool:
        return any(self._staleness(sample) > self.max_staleness for sample in group.samples)
