"""Advantages without a group: a moving average for each source, and whitening over a batch.

Baselines that compare replies with each other stand in `groups`, what comes later in a session in `returns`, what a
teacher says in `distillation`. All arithmetic is on differences of rewards, so rewards that are all equal give
exactly zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


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
