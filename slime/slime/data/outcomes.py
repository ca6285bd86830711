"""Outcomes: the rewards of a batch, one a turn or, where a whole trajectory has one reward, one a trajectory.

    Batch ─▶ Outcomes (reward, group, source, tokens) ─▶ baseline ─▶ an advantage each ─▶ back onto the tokens

A baseline compares outcomes, not samples: a session of three judged turns has three of them in one
sample, and a trajectory that had to be cut into three samples has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass

from slime.types import Batch, Sample


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
