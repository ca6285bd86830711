"""Between collecting and training: a bounded queue that knows how old its samples are.

    collect ──put (waits while full)──▶ [oldest … newest] ──take (waits for enough)──▶ train

What is trained is never more than `max_staleness` updates older than the trainer. Admission keeps it
so: a full queue holds the collector back, and turns wait in the store instead. What nevertheless grew
too old while it waited is handed back by `take`, to be accounted for, and is not trained.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slime.types import Sample, SampleGroup


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take` found: `groups` to train on, oldest first, and the `stale` ones that are too old for it."""

    groups: tuple[SampleGroup, ...]
    stale: tuple[SampleGroup, ...]


class SampleQueue:
    """A first-in-first-out queue of sample groups, bounded in samples.

    Args:
        capacity: samples that may wait; `put` waits while there are that many.
        max_staleness: trainer version − policy version that a sample may have when it is taken.
    """

    def __init__(self, capacity: int, max_staleness: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if max_staleness < 0:
            raise ValueError(f"max_staleness must be at least 0, not {max_staleness}")
        self.capacity = capacity
        self.max_staleness = max_staleness
        self._groups: deque[SampleGroup] = deque()
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        """Samples that wait."""
        return sum(len(group.samples) for group in self._groups)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """The turns behind the samples that wait; their leases must be kept alive."""
        return tuple(turn_id for group in self._groups for sample in group.samples for turn_id in sample.turn_ids)

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

    async def take(self, num_samples: int, version: int) -> Taken:
        """Wait for at least `num_samples` fresh samples and take just enough whole groups for them.

        Args:
            version: the trainer's version; a sample older than `version − max_staleness` is stale.

        Returns:
            Early, with stale groups and no others, as soon as there are stale ones to account for.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_stale(version) or len(self) >= num_samples)
            stale = self._remove_stale(version)
            groups: list[SampleGroup] = []
            if len(self) >= num_samples:
                taken = 0
                while taken < num_samples:
                    groups.append(self._groups.popleft())
                    taken += len(groups[-1].samples)
            self._changed.notify_all()
            return Taken(tuple(groups), stale)

    async def take_rest(self, version: int) -> Taken:
        """What there is, however little, without waiting: for when nothing more will come."""
        return await self.take(len(self), version)

    def version_of(self, sample: Sample, version: int) -> int:
        """The version of the policy that trains a sample, when the run's is `version`."""
        return version

    def admitted_version(self, version: int) -> int:
        """What a turn is to be compared with before it is judged."""
        return version

    def trained(self, groups: Sequence[SampleGroup]) -> None:
        """These groups made an update."""

    def restore(self, versions: Mapping[str, int]) -> None:
        """Go on from the versions of policies that sources have of their own; here they have none."""

    def _remove_stale(self, version: int) -> tuple[SampleGroup, ...]:
        stale = tuple(group for group in self._groups if self._is_stale(group, version))
        if stale:
            self._groups = deque(group for group in self._groups if not self._is_stale(group, version))
        return stale

    def _is_stale(self, group: SampleGroup, version: int) -> bool:
        return any(
            self.version_of(sample, version) - sample.policy_version > self.max_staleness for sample in group.samples
        )

    def _has_stale(self, version: int) -> bool:
        return any(self._is_stale(group, version) for group in self._groups)
