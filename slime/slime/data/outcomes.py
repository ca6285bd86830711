"""Outcomes: the rewards of a batch, one a turn or, where a whole trajectory has one reward, one a trajectory.

    Batch ─▶ Outcomes (reward, group, source, tokens) ─▶ baseline ─▶ an advantage each ─▶ back onto the tokens

A baseline compares outcomes, not samples: a session of three judged turns has three of them in one
sample, and a trajectory that had to be cut into three samples has one.

Each continues another of its session, though each may be a sample and a group of its own:

    t1 ─▶ t2 ─▶ t3      t2 scored nothing, or is in another batch: t3 goes on from t1
      └─▶ t2′           a reply that was regenerated goes on from t1 as well, never from t2

A step is from one scored turn of the batch to the next. What falls into another batch is not looked for: the session is
cut there, and its last turn here counts as its end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from slime.algorithms.returns import last_first
from slime.types import Batch, Sample

_FARTHEST = 256
"""How many turns ahead a loss that calls `compute_gae` can see; (γλ)^256 is 2e-7 at .99 and .95."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One reward and the tokens it is about.

    Attributes:
        group_id: what it is compared with when groups are centred.
        member_id: the trajectory that earned it.
        source: whose moving average it belongs to.
        step: the turn's index in its sample; 0 where a whole trajectory has one reward.
        outcome: what the whole trajectory came to, if the sample says.
        turn_id: the turn that earned it; empty where the sample names none.
        ancestors: turns that it goes on from, nearest first; None where nobody knows.
        tokens: (sample, position) of every trainable token it is about.
    """

    reward: float
    group_id: str
    member_id: str
    source: str
    step: int
    outcome: float
    turn_id: str
    ancestors: tuple[str, ...] | None
    tokens: tuple[tuple[int, int], ...]


def outcomes(batch: Batch) -> list[Outcome]:
    """The outcomes of a batch in order of their first tokens; together they are about every trainable token once.

    Tokens of a turn that nobody scored (`has_reward` 0) belong to no outcome.
    """
    tokens: dict[Hashable, list[tuple[int, int]]] = {}
    found: dict[Hashable, Outcome] = {}
    members = [(group.group_id, sample) for group in batch.groups for sample in group.samples]
    for index, (group_id, sample) in enumerate(members):
        member_id, whole = sample.trajectory_id or f"sample {index}", float(sample.values.get("outcome", 0.0))
        for position, reward, turn in _rewarded_tokens(sample):
            # Samples without turns are parts of one trajectory when they share its reward.
            key = (group_id, member_id, reward) if turn is None else (index, turn)
            if key not in found:
                which = (group_id, member_id, sample.source, turn or 0, whole)
                found[key] = Outcome(reward, *which, *_turn(sample, turn), tokens=())
            tokens.setdefault(key, []).append((index, position))
    return [dataclasses.replace(found[key], tokens=tuple(places)) for key, places in tokens.items()]


def _turn(sample: Sample, index: int | None) -> tuple[str, tuple[str, ...] | None]:
    """The sample's turn of that index, or the only one it has, and what it goes on from."""
    index = 0 if index is None and len(sample.turn_ids) == 1 else index
    if index is None or not 0 <= index < len(sample.turn_ids):
        return "", None
    return sample.turn_ids[index], sample.ancestors[index] if sample.ancestors else None


def _rewarded_tokens(sample: Sample) -> list[tuple[int, float, int | None]]:
    """(position, reward, turn or None) of the sample's trainable tokens that have a reward."""
    names = ("loss_mask", "rewards", "turn_index", "has_reward")
    mask, rewards, turns, has_reward = (sample.streams.get(name) for name in names)
    assert mask is not None  # a sample has one, or it would not exist
    whole = float(sample.values.get("reward", 0.0))
    return [
        (
            position,
            whole if rewards is None else float(rewards[position]),
            None if turns is None or rewards is None else int(turns[position]),
        )
        for position, flag in enumerate(mask)
        if flag and (has_reward is None or has_reward[position])
    ]


# ── their order within a session ─────────────────────────────────────────────────────────────────────────────────────


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
