"""Off-policy corrections: for tokens that other weights sampled, or the same weights on another machine.

    rollout_logprobs   b   the behaviour policy: what the engine sampled from
    proximal_logprobs  p   the proximal policy: as it was at the start of the batch, computed by the trainer
    policy_logprobs    π   the policy now, with gradient

The objective's ratio may be taken straight to the behaviour, π/b (`losses.importance_ratio`); or it is taken to the
proximal policy, π/p, which keeps the trust region around the weights that are being updated, and every token gets a
weight made of p/b, the product being π/b again (decoupled PPO, arXiv 2110.00641). The weights are
constants. Rejected tokens have weight 0: they drop out of numerators, never out of denominators.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from slime.algorithms.reductions import sequence_means, sequence_sums

Level = Literal["token", "sequence", "geometric"]
Mode = Literal["truncate", "clip", "mask"]

_LARGEST_LOG = 20.0
"""Log-ratios of whole sequences are held within ±20 before they are exponentiated."""


def behaviour_weights(
    proximal_logprobs: Tensor,
    rollout_logprobs: Tensor,
    sequence_index: Tensor,
    *,
    level: Level,
    mode: Mode,
    low: float,
    high: float,
) -> Tensor:
    """p/b of each token, bounded: masked or truncated importance sampling, [N], without gradient.

    A sequence's weight is the product of its tokens' (level `sequence`: unbiased, and wild for long ones) or their
    geometric mean (level `geometric`), and all its tokens carry it. Out of [low, high] a weight is held at `high`
    (`truncate`), at either bound (`clip`: decoupled PPO with TIS), or rejected (`mask`: IcePop at token level).

    >>> p, b, one = torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0]), torch.tensor([0, 0])
    >>> behaviour_weights(p, b, one, level="token", mode="mask", low=0.0, high=2.0)
    tensor([1., 0.])
    """
    log_weights = (proximal_logprobs - rollout_logprobs).detach()
    if level == "sequence":
        log_weights = sequence_sums(log_weights, sequence_index)
    elif level == "geometric":
        log_weights = sequence_means(log_weights, sequence_index)
    weights = torch.exp(log_weights.clamp(-_LARGEST_LOG, _LARGEST_LOG))
    if mode == "truncate":
        return weights.clamp(max=high)
    if mode == "clip":
        return weights.clamp(low, high)
    return torch.where((weights >= low) & (weights <= high), weights, torch.zeros_like(weights))


def veto_mask(proximal_logprobs: Tensor, rollout_logprobs: Tensor, sequence_index: Tensor, threshold: float) -> Tensor:
    """False for the tokens of a sequence with one whose p/b is below `threshold`, [N]: the veto of veRL's MIS.

    A token that the trainer finds next to impossible says that the two machines did not read the same reply, whatever
    the mean over its tokens is.

    >>> p, b = torch.tensor([-9.0, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -1.0])
    >>> veto_mask(p, b, torch.tensor([0, 0, 1]), threshold=1e-3)
    tensor([False, False,  True])
    """
    is_vetoed = (proximal_logprobs - rollout_logprobs).detach() < math.log(threshold)
    return sequence_sums(is_vetoed.float(), sequence_index) == 0


def off_policy_sequence_mask(
    policy_logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, sequence_index: Tensor, delta: float
) -> Tensor:
    """False for the tokens of bad sequences that the policy has left behind, [N] (OPSM, DeepSeek-V3.2 §3.1).

    A bad reply that the policy would hardly give any more says little about it, and pushing it down further does
    harm. How far it was left behind is the mean of log b − log π over its tokens, more than `delta` being too far.

    >>> left, b = torch.tensor([-3.0, -1.0]), torch.tensor([-1.0, -1.0])
    >>> off_policy_sequence_mask(left, b, torch.tensor([-1.0, 1.0]), torch.tensor([0, 0]), delta=0.1)
    tensor([False,  True])
    """
    left_behind = sequence_means((rollout_logprobs - policy_logprobs).detach(), sequence_index)
    return ~((advantages < 0) & (left_behind > delta))
