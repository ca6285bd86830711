"""Order of outcomes within a session: each continues another, though each may be a sample and a group of its own.

    outcomes of a batch ─ by source and trajectory ─▶ sessions ─ ancestors ─▶ the outcome before each, or none

    t1 ─▶ t2 ─▶ t3      t2 scored nothing, or is in another batch: t3 goes on from t1
      └─▶ t2′           a reply that was regenerated goes on from t1 as well, never from t2

A step is from one scored turn of the batch to the next. What falls into another batch is not looked for: the session is
cut there, and its last turn here counts as its end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from slime.algorithms.returns import last_first
from slime.data.outcomes import Outcome, outcomes
from slime.types import Batch

_FARTHEST = 256
"""How many turns ahead a loss that calls `compute_gae` can see; (γλ)^256 is 2e-7 at .99 and .95."""


def goes_on_from(scored: Sequence[Outcome]) -> list[int | None]:
    """For each outcome the index of the one before it in its session; None where it is the first in the batch."""
    sessions: dict[tuple[str, str], list[int]] = {}
    for index, outcome in enumerate(scored):
        sessions.setdefault((outcome.source, outcome.member_id), []).append(index)
    before: list[int | None] = [None] * len(scored)
    for session in sessions.values():
        by_turn = {scored[index].turn_id: index for index in session if scored[index].turn_id}
        for index in sorted(session, key=lambda index: scored[index].ancestors is None):
            ancestors = scored[index].ancestors
            if ancestors is None:  # the newest before it in the batch
                earlier = [i for i in reversed(session) if i < index]
            else:
                earlier = [by_turn[turn_id] for turn_id in ancestors if turn_id in by_turn]
            # Never one that goes on from it: what turns say of each other may lead round in a circle.
            before[index] = next((i for i in earlier if not _leads_to(before, i, index)), None)
    return before


def with_later_rewards(batch: Batch) -> Batch:
    """The batch with a `later_rewards` stream: at each scored token what the turns after its own earned.

    Where a session goes on in several ways an entry is the mean over them, a line that has ended counting as 0.
    """
    scored = outcomes(batch)
    streams: list[list[tuple[float, ...]]] = [[()] * len(sample.token_ids) for sample in batch.samples]
    for outcome, row in zip(scored, _later_rewards(scored), strict=True):
        for sample, position in outcome.tokens:
            streams[sample][position] = row
    return batch.with_samples(
        dataclasses.replace(sample, streams={**sample.streams, "later_rewards": stream})
        for sample, stream in zip(batch.samples, streams, strict=True)
    )


def _later_rewards(scored: Sequence[Outcome]) -> list[tuple[float, ...]]:
    later: list[tuple[float, ...]] = [()] * len(scored)
    for index, following in last_first(goes_on_from(scored)):
        lines = [(scored[after].reward, *later[after])[:_FARTHEST] for after in following]
        later[index] = tuple(sum(step) / len(lines) for step in itertools.zip_longest(*lines, fillvalue=0.0))
    return later


def _leads_to(before: Sequence[int | None], start: int, end: int) -> bool:
    """Whether going back from `start` comes by `end`."""
    at: int | None = start
    while at is not None and at != end:
        at = before[at]
    return at is not None
