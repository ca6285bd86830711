"""Advantages of rewards: above a moving average for each source, or above others that they are compared with.

    rewards, sources   ─── MovingBaseline              r − what the source's rewards were before
    rewards, group ids ─┬─ group_advantages            r − mean                  Dr. GRPO, REINFORCE++ baseline
                        ├─ standardized_advantages     (r − mean) / (std + ε)    GRPO, GSPO, CISPO
                        ├─ leave_one_out_advantages    r − mean of the others    RLOO
                        └─ step_wise_advantages        GRPO within (group, step)
    advantages         ─── whiten                      (A − mean) / std over a batch

What comes later in a session stands in `returns`, what a teacher says in `distillation`. Groups may be of any size and
need not lie together. All arithmetic is on differences of rewards, so rewards that are all equal give exactly zero.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

STD_EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


def whiten(values: Tensor) -> Tensor:
    """Values less their mean, over their standard deviation: (x − mean) / √(var + 1e-8), var unbiased; [N] → [N].

    Values that are all equal give exactly zero, as does one alone.

    >>> whiten(torch.tensor([1.0, 3.0], dtype=torch.float64))
    tensor([-0.7071,  0.7071], dtype=torch.float64)
    """
    if len(values) < 2:
        return torch.zeros_like(values)
    differences = values - values[0]
    centred = differences - differences.mean()
    variance = centred.square().sum() / (len(values) - 1)
    return centred * torch.rsqrt(variance + 1e-8)


class MovingBaseline:
    """What a reward of each source is expected to be: an exponential moving average over past rewards.

    The baseline of a reward is made of its source's past *and of the other rewards of the batch*, each
    counting as one, so that it works at group size 1 and from the first batch on; the reward
    itself only enters the past afterwards. A source's first reward of all, alone, has nothing to be compared with
    and is its own advantage.

    Args:
        decay: weight of the past, 0 ≤ decay < 1; 0.9 remembers about the last ten rewards.
    """

    def __init__(self, decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must be in [0, 1), not {decay}")
        self.decay = decay
        self._averages: dict[str, tuple[float, float]] = {}
        """By source: the average, and the number of rewards that it is worth, at most 1 / (1 − decay)."""

    def advantages(self, rewards: Sequence[float], sources: Sequence[str]) -> list[float]:
        """Each reward less its baseline; then all of them, in order, become the past."""
        batch: dict[str, list[float]] = {}
        for reward, source in zip(rewards, sources, strict=True):
            batch.setdefault(source, []).append(reward)
        pairs = list(zip(rewards, sources, strict=True))
        advantages = [self._advantage(reward, batch[source], source) for reward, source in pairs]
        for reward, source in pairs:
            self._remember(reward, source)
        return advantages

    def _advantage(self, reward: float, batch: list[float], source: str) -> float:
        past, past_weight = self._averages.get(source, (0.0, 0.0))
        weight = past_weight + len(batch) - 1
        if weight == 0:
            return reward
        # The reward itself is in `batch`, where it contributes a difference of zero.
        return (past_weight * (reward - past) + math.fsum(reward - other for other in batch)) / weight

    def _remember(self, reward: float, source: str) -> None:
        past, past_weight = self._averages.get(source, (0.0, 0.0))
        weight = self.decay * past_weight + 1.0
        self._averages[source] = past + (reward - past) / weight, weight

    def state(self) -> dict[str, Any]:
        """What `restore` takes, as JSON can hold it: `{"ada": [0.25, 6.51], …}`."""
        return {source: list(average) for source, average in self._averages.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was saved."""
        self._averages = {source: (float(value), float(weight)) for source, (value, weight) in state.items()}


def group_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], member_ids: Sequence[Hashable] | None = None
) -> list[float]:
    """Each reward less the mean of its group (GRPO's centring), whatever the size of the groups.

    A group of one says nothing about better or worse and gets 0; so does a member alone, whatever rewards it earned
    along the way.

    Args:
        member_ids: who earned a reward; a member with several counts once, with their mean. Default: each its own.

    >>> group_advantages([1.0, 0.0, 0.5, 0.5], ["p", "p", "q", "q"])
    [0.5, -0.5, 0.0, 0.0]
    """
    members = _members(rewards, group_ids, member_ids)
    return [
        _above_mean(reward, members[group_id]) if len(members[group_id]) > 1 else 0.0
        for reward, group_id in zip(rewards, group_ids, strict=True)
    ]


def standardized_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], member_ids: Sequence[Hashable] | None = None
) -> list[float]:
    """`group_advantages` over the unbiased standard deviation of the group (GRPO, arXiv 2402.03300 §4.1.2, and §4.1.3
    where a member earned a reward at each of several steps: the deviation is that of all of them).

    With n members that earned k rewards each, no advantage is larger than √(k·(n − 1)).

    >>> standardized_advantages([3.0, 1.0, 7.0], ["p", "p", "q"])
    [0.7071062811869716, -0.7071062811869716, 0.0]
    >>> standardized_advantages([1.0, 0.0, 0.0, 1.0], ["p"] * 4, ["a", "a", "b", "b"])
    [0.7071057811879617, -0.7071057811879617, -0.7071057811879617, 0.7071057811879617]
    """
    members = _members(rewards, group_ids, member_ids)
    deviations = {group_id: _deviation(of_group) for group_id, of_group in members.items()}
    centred = group_advantages(rewards, group_ids, member_ids)
    return [
        advantage / (deviations[group_id] + STD_EPSILON) for advantage, group_id in zip(centred, group_ids, strict=True)
    ]


def leave_one_out_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], member_ids: Sequence[Hashable] | None = None
) -> list[float]:
    """Each reward less the mean of the *other* members of its group (RLOO, arXiv 2402.14740); 0 when alone.

    The baseline does not depend on the reward that it is subtracted from, so the gradient stays unbiased.

    >>> leave_one_out_advantages([1.0, 0.0, 0.0], ["p", "p", "p"])
    [1.0, -0.5, -0.5]
    """
    owners = range(len(rewards)) if member_ids is None else member_ids
    members = _members(rewards, group_ids, owners)
    advantages: list[float] = []
    for reward, group_id, own in zip(rewards, group_ids, owners, strict=True):
        others = {member_id: earned for member_id, earned in members[group_id].items() if member_id != own}
        advantages.append(_above_mean(reward, others) if others else 0.0)
    return advantages


def step_wise_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], steps: Sequence[int]
) -> list[float | None]:
    """Rewards of steps, standardised among the steps of the same index of the same group.

    A bucket of one has nothing to be compared with and keeps its reward as it is. A bucket whose rewards are all
    equal teaches nothing and is dropped (None), all but the first of them where nothing else would be left.

    >>> step_wise_advantages([1.0, 0.0, 0.5, 0.5, -1.0], ["p"] * 5, [0, 0, 1, 1, 2])
    [0.7071057811879617, -0.7071057811879617, None, None, -1.0]
    """
    buckets = [(group_id, step) for group_id, step in zip(group_ids, steps, strict=True)]
    members = _members(rewards, buckets, None)
    constant = {b for b, of_bucket in members.items() if len(of_bucket) > 1 and _deviation(of_bucket) == 0.0}
    if len(constant) == len(members) and constant:
        constant.discard(buckets[0])
    standardized = standardized_advantages(rewards, buckets)
    return [
        None if bucket in constant else reward if len(members[bucket]) == 1 else advantage
        for reward, bucket, advantage in zip(rewards, buckets, standardized, strict=True)
    ]


_Members = Mapping[Hashable, Mapping[Hashable, Sequence[float]]]
"""`members[group_id][member_id]`: the rewards that a member of a group earned."""


def _members(
    rewards: Sequence[float], group_ids: Sequence[Hashable], member_ids: Sequence[Hashable] | None
) -> _Members:
    members: dict[Hashable, dict[Hashable, list[float]]] = {}
    for i, (reward, group_id) in enumerate(zip(rewards, group_ids, strict=True)):
        member_id = member_ids[i] if member_ids is not None else i
        members.setdefault(group_id, {}).setdefault(member_id, []).append(reward)
    return members


def _above_mean(reward: float, members: Mapping[Hashable, Sequence[float]]) -> float:
    """How far a reward lies above the mean over members of their mean rewards."""
    return statistics.fmean([statistics.fmean([reward - other for other in earned]) for earned in members.values()])


def _deviation(members: Mapping[Hashable, Sequence[float]]) -> float:
    """The unbiased standard deviation of a group's rewards, each member weighing the same; 0 for a member alone.

    It measures what `_above_mean` centres, the spread inside the members with that between them: the latter alone is
    nothing where members that did differently at every step come to the same in the end.
    """
    if len(members) == 1:
        return 0.0
    squares = [
        statistics.fmean([_above_mean(reward, members) ** 2 for reward in earned]) for earned in members.values()
    ]
    return math.sqrt(math.fsum(squares) / (len(members) - 1))
