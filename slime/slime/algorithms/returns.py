"""What comes later counts for a turn: generalised advantages over the turns of a session (arXiv 1506.02438 eq. 11–16).

δ_k = r_k + γ·v_{k+1} − v_k        A_k = δ_k + γλ·A_{k+1}

A turn is one action: its score is the reward, the next turn of the session is the next step. Without values and with
λ = 1 the same recursion gives the discounted return, A_k = r_k + γ·A_{k+1}. Where a session goes on in several ways
(a reply was regenerated, a request edited), v_{k+1} and A_{k+1} are means over them: they are samples of what follows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor


def compute_gae(
    rewards: Tensor | Sequence[float],
    values: Tensor | Sequence[float] | None = None,
    gamma: float = 0.99,
    lambda_: float = 0.95,
) -> Tensor:
    """Advantages of a session's turns.

    Args:
        rewards: one a turn, in order, shape [n]; a list of numbers is float32.
        values: estimate of the return before each turn, shape [n]; zeros when there is no value function.

    >>> compute_gae(torch.tensor([0.0, 1.0]), gamma=1.0, lambda_=0.5)
    tensor([0.5000, 1.0000])
    """
    if not isinstance(rewards, Tensor):
        rewards = torch.tensor(rewards, dtype=torch.float32)
    baseline = [0.0] * len(rewards) if values is None else torch.as_tensor(values, dtype=torch.float64).tolist()
    chain = [None, *range(len(rewards) - 1)] if len(rewards) else []
    advantages = advantages_over_turns(rewards.tolist(), baseline, chain, gamma=gamma, lambda_=lambda_)
    return torch.tensor(advantages, dtype=rewards.dtype)


def advantages_over_turns(
    rewards: Sequence[float],
    values: Sequence[float],
    goes_on_from: Sequence[int | None],
    *,
    gamma: float,
    lambda_: float,
) -> list[float]:
    """Generalised advantages of turns that form trees.

    Args:
        goes_on_from: the index of the turn before each; None where it is the first.

    >>> advantages_over_turns([1.0, 0.0, 2.0], [0.0] * 3, [None, 0, 0], gamma=0.5, lambda_=1.0)
    [1.5, 0.0, 2.0]
    """
    advantages = [0.0] * len(rewards)
    for index, after in last_first(goes_on_from):
        value_after = statistics.fmean(values[i] for i in after) if after else 0.0
        later = statistics.fmean(advantages[i] for i in after) if after else 0.0
        advantages[index] = rewards[index] + gamma * value_after - values[index] + gamma * lambda_ * later
    return advantages


def last_first(goes_on_from: Sequence[int | None]) -> list[tuple[int, list[int]]]:
    """Each turn with those that go on from it, after all of them; no turn may go on from itself.

    >>> last_first([None, 0, 1])
    [(2, []), (1, [2]), (0, [1])]
    """
    following: dict[int | None, list[int]] = {}
    for index, before in enumerate(goes_on_from):
        following.setdefault(before, []).append(index)
    order = list(following.get(None, ()))
    for index in order:  # grows as it is read
        order += following.get(index, [])
    return [(index, following.get(index, [])) for index in reversed(order)]


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
