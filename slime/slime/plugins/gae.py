"""`compute_gae` as published loss files call it, and the same for tokens whose session goes on in other samples."""

from __future__ import annotations

import torch
from torch import Tensor

from slime.algorithms.returns import compute_gae

__all__ = ["advantages_of_tokens", "compute_gae"]


def advantages_of_tokens(rewards: Tensor, later_rewards: Tensor, gamma: float = 0.99, lambda_: float = 0.95) -> Tensor:
    """Each token's advantage: that of its turn among the turns of its session, A = r + Σ_j (γλ)^j · r_later,j.

    Args:
        rewards: by token, the same for all tokens of a turn, shape [N].
        later_rewards: what the turns after it earned, the next one first, zeros at the end, shape [N, k].

    >>> advantages_of_tokens(torch.tensor([0.0]), torch.tensor([[1.0, 2.0]]), gamma=0.5, lambda_=1.0)
    tensor([1.])
    """
    steps = torch.arange(1, later_rewards.shape[1] + 1, device=rewards.device)
    return rewards + (later_rewards * (gamma * lambda_) ** steps).sum(-1)
