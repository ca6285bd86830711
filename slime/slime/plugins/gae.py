"""`compute_gae` as published loss files call it, and the same over the turns that tokens belong to."""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.returns import compute_gae

__all__ = ["advantages_by_turn", "compute_gae"]


def advantages_by_turn(
    rewards: Tensor, turn_index: Tensor, sample_index: Tensor, gamma: float = 0.99, lambda_: float = 0.95
) -> Tensor:
    """Each token's advantage: that of its turn among the turns of its sample.

    Args:
        rewards: by token, the same for all tokens of a turn, shape [tokens].
        turn_index: which turn a token belongs to, ascending within a sample, shape [tokens].
        sample_index: which sample, shape [tokens].
    """
    advantages = torch.empty_like(rewards)
    for sample in sorted(set(sample_index.tolist())):
        turns = sorted(set(turn_index[sample_index == sample].tolist()))
        masks = [(sample_index == sample) & (turn_index == turn) for turn in turns]
        scores = torch.stack([rewards[mask][0] for mask in masks])
        for mask, advantage in zip(masks, compute_gae(scores, None, gamma, lambda_), strict=True):
            advantages[mask] = advantage
    return advantages
