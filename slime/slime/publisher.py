"""Publications: weights under a version number, in the journal first, then on the disk, then on every engine.

    weights of an update ─▶ Versions.take: number, synced ─▶ Learner.publish: published/version-9/ ─▶ engines serve 9
                                                             the last two stay, and what an engine may be loading

Publishing needs no checkpoint, and a checkpoint no publication. What a crash undid keeps its number: the run resumes
from its checkpoint and publishes those weights again, under the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Set
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from slime.progress import Progress
from slime.protocols import Learner, Resumed
from slime.types import Sample
from slime.weights.directories import numbered, remove
from slime.weights.versions import Versions

NUM_KEPT = 2
"""Publications of the same weights' line that stay: what is served, and what a refused successor gives way to."""

Publish = Callable[[Path, int], Awaitable[None]]
"""Have every engine serve a weights directory as a version; returns when they do."""


async def _none_served() -> int:
    return 0


@dataclass(eq=False)
class Publisher:
    """Gives the weights of a learner their numbers and has them served.

    Attributes:
        versions: the journal.
        progress: told which version is served.
        in_use: directories that an engine was told to load and has not said it serves.
        newest_served: the highest version that an engine knows, from any run.
    """

    versions: Versions
    learner: Learner
    serve: Publish
    _: KW_ONLY
    progress: Progress
    in_use: Callable[[], Set[Path]] = frozenset
    newest_served: Callable[[], Awaitable[int]] = _none_served

    async def resume(self, resumed: Resumed) -> None:
        """Have engines serve the weights that training goes on from; nothing where that is the model as given, and
        no other version was ever served."""
        versions = self.versions
        await asyncio.to_thread(versions.open, resumed.checkpoint.parent if resumed.checkpoint else None)
        lines = resumed.users or {"": (resumed.step, resumed.version)}
        for adapter, (step, version) in lines.items():
            versions.resume(step=step, version=version, adapter=adapter)
        served = await self.newest_served()
        if resumed.users or resumed.step or versions.newest or served:
            for adapter in lines:
                await self.publish(adapter, above=served)

    async def publish(self, adapter: str = "", *, above: int = 0) -> dict[str, float]:
        """The weights as they are now, served; returns figures of it.

        Raises:
            EngineRejected: an engine refused them; all serve what they served before.
            TrainerError: they are not fit to be served.
        """
        began = time.monotonic()
        taken = await asyncio.to_thread(self.versions.take, adapter, above=above)
        weights_dir = await self.learner.publish(taken.version, adapter)
        written = time.monotonic()
        await self.serve(weights_dir, taken.version)
        self.progress.version = taken.version
        remove_old(weights_dir.parent, self.in_use())
        return {
            "weights/version": float(taken.version),
            "weights/write_s": written - began,
            "weights/publish_s": time.monotonic() - written,
        }

    def staleness(self, sample: Sample, adapter: str = "") -> int:
        """Updates between the oldest weights that made a trained token of a sample and those that are trained now."""
        return max(self.versions.staleness(version, adapter) for version in sample.trained_versions)


def remove_old(publications: Path, in_use: Set[Path]) -> None:
    """Remove all but the newest publications of a directory and those in use, and what killed writers left."""
    older = list(numbered(publications, "version").values())[NUM_KEPT:]
    remove([path for path in older if path not in in_use], publications, "version")
