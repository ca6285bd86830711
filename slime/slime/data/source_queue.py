"""The queue of a run that trains an adapter for each user: every batch is of one source.

put ─▶ [ada bob ada ada bob] ─ the source that first has enough ─▶ take ─▶ [ada ada ada]
"""

from __future__ import annotations

from collections.abc import Sequence

from slime.data.sample_queue import SampleQueue, Taken
from slime.types import SampleGroup


class SourceQueue(SampleQueue):
    """A `SampleQueue` whose sources have weights of their own.

    The capacity is shared. Where it is full and no source has enough for a batch, the longest line is taken as it is,
    so that many people who say little cannot block each other.
    """

    def line_of(self, groups: Sequence[SampleGroup]) -> str:
        return _source(groups[0])

    async def take(self, num_samples: int) -> Taken:
        """Wait for `num_samples` fresh samples of one source and take just enough whole groups of it for them."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._has_stale() or self._is_ended or self._ready(num_samples) is not None
            )
            stale = self._remove_stale()
            source = self._ready(num_samples)
            groups: list[SampleGroup] = []
            for group in self._groups:
                if _source(group) == source and sum(len(g.samples) for g in groups) < num_samples:
                    groups.append(group)
            taken = {id(group) for group in groups}
            self._groups = type(self._groups)(group for group in self._groups if id(group) not in taken)
            self._changed.notify_all()
            return Taken(tuple(groups), stale)

    async def take_rest(self) -> Taken:
        """What is left of one source, at once; nothing when nothing waits."""
        counts = self._counts()
        return await self.take(max(counts.values())) if counts else Taken((), ())

    def _ready(self, num_samples: int) -> str | None:
        counts = self._counts()
        if not counts:
            return None
        longest = max(counts, key=lambda source: counts[source])
        is_due = counts[longest] >= num_samples or len(self) >= self.capacity or self._is_ended
        return longest if is_due else None

    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for group in self._groups:
            counts[_source(group)] = counts.get(_source(group), 0) + len(group.samples)
        return counts


def _source(group: SampleGroup) -> str:
    return group.samples[0].source
