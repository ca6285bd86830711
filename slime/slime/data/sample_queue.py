"""Backpressure between collecting and training: a bounded queue that knows how old its samples are.

    collect ──put (waits while full)──▶ [oldest … newest] ──take (waits for enough)──▶ train
            ──end (nothing more comes)─▶                   ──take (what is left)────▶

What is trained is never more than `max_staleness` updates older than the trainer. Admission keeps it
so: a full queue holds the collector back, and turns wait in the store instead. What nevertheless grew
too old while it waited is handed back by `take`, to be accounted for, and is not trained.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
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

    Args:
        capacity: samples that may wait; `put` waits while there are that many.
        max_staleness: the staleness that a sample may have when it is taken.
        staleness: asked for every sample that waits; nothing is ever stale unless given.
    """

    def __init__(self, capacity: int, max_staleness: int, staleness: Staleness = lambda sample: 0) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0, not {max_staleness}")
        self.capacity = capacity
        self.max_staleness = max_staleness
        self._staleness = staleness
        self._groups: deque[SampleGroup] = deque()
        self._changed = asyncio.Condition()
        self._is_ended = False

    def __len__(self) -> int:
        """Samples that wait."""
        return sum(len(group.samples) for group in self._groups)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """The turns behind the samples that wait; their leases must be kept alive."""
        return tuple(turn_id for group in self._groups for sample in group.samples for turn_id in sample.turn_ids)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing waits and nothing will come."""
        return self._is_ended and not self._groups

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
        """Wait for at least `num_samples` fresh samples and take just enough whole groups for them.

        Returns:
            Early, with stale groups and no others, as soon as there are stale ones to account for. After the end what
            is left, however little, and nothing when nothing is.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_stale() or self._is_ended or len(self) >= num_samples)
            stale = self._remove_stale()
            groups: list[SampleGroup] = []
            if len(self) >= num_samples or self._is_ended:
                taken = 0
                while taken < num_samples and self._groups:
                    groups.append(self._groups.popleft())
                    taken += len(groups[-1].samples)
            self._changed.notify_all()
            return Taken(tuple(groups), stale)

    async def take_rest(self) -> Taken:
        """What there is, however little, without waiting: for when nothing more will come."""
        return await self.take(len(self))

    def line_of(self, groups: Sequence[SampleGroup]) -> str:
        """Whose weights these groups train: empty, everybody's."""
        return ""

    def _remove_stale(self) -> tuple[SampleGroup, ...]:
        stale = tuple(group for group in self._groups if self._is_stale(group))
        if stale:
            self._groups = deque(group for group in self._groups if not self._is_stale(group))
        return stale

    def _is_stale(self, group: SampleGroup) -> bool:
        return any(self._staleness(sample) > self.max_staleness for sample in group.samples)

    def _has_stale(self) -> bool:
        return any(self._is_stale(group) for group in self._groups)
