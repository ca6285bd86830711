"""What comes later counts for a turn: generalised advantages over the turns of a session (arXiv 1506.02438 eq. 11–16).

δ_k = r_k + γ·v_{k+1} − v_k        A_k = δ_k + γλ·A_{k+1}

A turn is one action: its score is the reward, the next turn of the session is the next step. Without values and with
λ = 1 the same recursion gives the discounted return, A_k = r_k + γ·A_{k+1}.
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


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float) -> Tensor:
    """½·max((v − R)², (v_old + clip(v − v_old, ±value_clip) − R)²), a token each: PPO's clipped value loss.

    A value that has moved by `value_clip` toward the return gets no further push in this batch; 0 lets it move freely.

    Args:
        values: [N] now, with gradient.
        old_values: [N] at the start of the batch.
        returns: [N] what they should have been: advantage plus old value.

    >>> value_loss(torch.tensor([0.5]), torch.tensor([0.0]), torch.tensor([1.0]), value_clip=0.2)
    tensor([0.3200])
    """
    if not value_clip:
        return (values - returns).square() / 2
    near = old_values + (values - old_values).clamp(-value_clip, value_clip)
    return torch.maximum((values - returns).square(), (near - returns).square()) / 2
