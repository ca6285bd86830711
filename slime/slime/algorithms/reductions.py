"""From losses of tokens to the loss of a step: the mean over a trajectory's trainable tokens, then over trajectories.

How many tokens a trajectory trains is counted over the whole step before anything is packed, so a
sample contributes the same number wherever it ends up: alone or packed, first or last, on any rank.

    loss = 1/G · Σ_trajectories 1/M · Σ_tokens x        M: its trainable tokens, in all its samples; G: trajectories
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def trajectory_sizes(trajectory_ids: Sequence[str], token_counts: Sequence[int]) -> list[int]:
    """For each sample, M: the trainable tokens of the trajectory that it belongs to.

    >>> trajectory_sizes(["a", "b", "a"], [3, 2, 1])
    [4, 2, 4]
    """
    sizes: dict[str, int] = {}
    for trajectory_id, count in zip(trajectory_ids, token_counts, strict=True):
        sizes[trajectory_id] = sizes.get(trajectory_id, 0) + count
    return [sizes[trajectory_id] for trajectory_id in trajectory_ids]


def num_trajectories(trajectory_ids: Sequence[str], token_counts: Sequence[int]) -> int:
    """G: trajectories that train at least one token; the others do not dilute the mean.

    >>> num_trajectories(["a", "b", "a"], [0, 2, 1])
    2
    """
    return len({name for name, count in zip(trajectory_ids, token_counts, strict=True) if count})


def token_weights(sizes: Sequence[int], token_counts: Sequence[int]) -> Tensor:
    """The weight 1/M of every trainable token, samples in order; float64, for it is used as a constant.

    Args:
        sizes: of the samples' trajectories, from `trajectory_sizes`.
        token_counts: trainable tokens of each sample.

    >>> token_weights([4, 2], [1, 2])
    tensor([0.2500, 0.5000, 0.5000], dtype=torch.float64)
    """
    weights = torch.tensor([1.0 / max(size, 1) for size in sizes], dtype=torch.float64)
    return weights.repeat_interleave(torch.tensor(list(token_counts), dtype=torch.int64))


def sum_of_means(values: Tensor, weights: Tensor) -> Tensor:
    """Σ over tokens of weight × value: a micro-batch's share of the sum over trajectories of their token means."""
    return (values * weights.to(values)).sum()
