"""The queue of a run that trains an adapter for each user: batches of one source, aged by that source's own updates.

put ─▶ [ada bob ada ada bob] ─ the source that first has enough ─▶ take ─▶ [ada ada ada]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slime.data.sample_queue import SampleQueue, Taken
from slime.types import Sample, SampleGroup


class SourceQueue(SampleQueue):
    """A `SampleQueue` whose versions count the updates of each source's policy; the run's own version does not matter.

    The capacity is shared. Where it is full and no source has enough for a batch, the longest line is taken as it is,
    so that many people who say little cannot block each other.
    """

    def __init__(self, capacity: int, max_staleness: int) -> None:
        super().__init__(capacity, max_staleness)
        self._versions: dict[str, int] = {}

    def restore(self, versions: Mapping[str, int]) -> None:
        """Go on from the versions that were saved, by source."""
        self._versions = dict(versions)

    def trained(self, groups: Sequence[SampleGroup]) -> None:
        """These groups, of one source, made an update of it."""
        source = _source(groups[0])
        self._versions[source] = self._versions.get(source, 0) + 1

    def version_of(self, sample: Sample, version: int) -> int:
        return self._versions.get(sample.source, 0)

    def admitted_version(self, version: int) -> int:
        """A turn that nobody has placed yet may be of somebody whose policy is new."""
        return 0

    async def take(self, num_samples: int, version: int) -> Taken:
        """Wait for `num_samples` fresh samples of one source and take just enough whole groups of it for them."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._has_stale(version) or self._ready(num_samples) is not None)
            stale = self._remove_stale(version)
            source = self._ready(num_samples)
            groups: list[SampleGroup] = []
            for group in self._groups:
                if _source(group) == source and sum(len(g.samples) for g in groups) < num_samples:
                    groups.append(group)
            taken = {id(group) for group in groups}
            self._groups = type(self._groups)(group for group in self._groups if id(group) not in taken)
            self._changed.notify_all()
            return Taken(tuple(groups), stale)

    async def take_rest(self, version: int) -> Taken:
        """What is left of one source, at once; nothing when nothing waits."""
        counts = self._counts()
        return await self.take(max(counts.values()), version) if counts else Taken((), ())

    def _ready(self, num_samples: int) -> str | None:
        counts = self._counts()
        if not counts:
            return None
        longest = max(counts, key=lambda source: counts[source])
        return longest if counts[longest] >= num_samples or len(self) >= self.capacity else None

    def _counts(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for group in self._groups:
            counts[_source(group)] = counts.get(_source(group), 0) + len(group.samples)
        return counts


def _source(group: SampleGroup) -> str:
    return group.samples[0].source
