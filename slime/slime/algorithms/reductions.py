"""From losses of tokens to the loss of a step: mean over a trajectory's trainable tokens, then over trajectories.

How many tokens a trajectory trains is counted over the whole step before anything is packed, so a
sample contributes the same number wherever it ends up: alone or packed, first or last, on any rank.

    trajectory   1/G · Σ_trajectories 1/M · Σ_tokens x        M: its trainable tokens, in all samples; G: trajectories
    token        1/N · Σ_tokens x                             N: trainable tokens of the step
    constant     1/G · Σ_trajectories 1/L · Σ_tokens x        L: a length that does not depend on the replies
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Reduction:
    """How tokens are averaged: each gets a weight, and the weighted sum over the step is divided by `divisor`.

    By trajectory, every conversation counts the same. By token, a long one counts more. With a constant, it counts
    more too, and how long the *others* are does not matter (Dr. GRPO, arXiv 2503.20783 §3.2).

    Attributes:
        length: L of the constant reduction.
    """

    kind: Literal["trajectory", "token", "constant"] = "trajectory"
    length: int = 1

    def weights(self, sizes: Sequence[int], token_counts: Sequence[int]) -> Tensor:
        """The weight of every trainable token, samples in order; float64, for it is used as a constant.

        Args:
            sizes: of the samples' trajectories, from `trajectory_sizes`.
            token_counts: trainable tokens of each sample.

        >>> Reduction().weights([4, 2], [1, 2])
        tensor([0.2500, 0.5000, 0.5000], dtype=torch.float64)
        """
        each = {
            "trajectory": [1.0 / max(size, 1) for size in sizes],
            "token": [1.0] * len(sizes),
            "constant": [1.0 / self.length] * len(sizes),
        }[self.kind]
        counts = torch.tensor(list(token_counts), dtype=torch.int64)
        return torch.tensor(each, dtype=torch.float64).repeat_interleave(counts)

    def divisor(self, num_trajectories: int, num_tokens: int) -> int:
        """What the weighted sum over a step is divided by."""
        return num_tokens if self.kind == "token" else num_trajectories


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


def sum_of_means(values: Tensor, weights: Tensor) -> Tensor:
    """Σ over tokens of weight × value: a micro-batch's share of the weighted sum over the step."""
    return (values * weights.to(values)).sum()


def sequence_sums(values: Tensor, sequence_index: Tensor) -> Tensor:
    """The sum over each token's sequence, at each of its tokens: [N] → [N].

    Args:
        sequence_index: [N] int64, which sequence a token belongs to, 0 ≤ i < number of sequences.

    >>> sequence_sums(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 1]))
    tensor([3., 3., 5.])
    """
    num_sequences = int(sequence_index.max()) + 1 if len(sequence_index) else 0
    return values.new_zeros(num_sequences).index_add(0, sequence_index, values)[sequence_index]


def sequence_means(values: Tensor, sequence_index: Tensor) -> Tensor:
    """The mean over each token's sequence, at each of its tokens: [N] → [N]."""
    return sequence_sums(values, sequence_index) / sequence_sums(torch.ones_like(values), sequence_index)
