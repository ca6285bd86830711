"""Generalised advantage estimation over the turns of a session (Schulman et al., arXiv 1506.02438).

δ_k = r_k + γ·v_{k+1} − v_k        A_k = δ_k + γλ·A_{k+1}

A turn is one action: its score is the reward, the next turn of the session is the next step.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_gae(
    rewards: Tensor, values: Tensor | list[float] | None = None, gamma: float = 0.99, lambda_: float = 0.95
) -> Tensor:
    """Advantages of a session's turns.

    Args:
        rewards: one a turn, in order, shape [n].
        values: estimate of the return before each turn, shape [n]; zeros when there is no value function.

    >>> compute_gae(torch.tensor([0.0, 1.0]), gamma=1.0, lambda_=0.5)
    tensor([0.5000, 1.0000])
    """
    baseline = torch.zeros_like(rewards) if values is None else torch.as_tensor(values, dtype=rewards.dtype)
    following = torch.cat([baseline[1:], baseline.new_zeros(1)])
    deltas = rewards + gamma * following - baseline
    advantages = torch.zeros_like(deltas)
    running = deltas.new_zeros(())
    for k in range(len(deltas) - 1, -1, -1):
        running = deltas[k] + gamma * lambda_ * running
        advantages[k] = running
    return advantages


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
