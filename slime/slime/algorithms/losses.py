"""The terms of the loss, token by token: every function maps 1-D tensors over trainable tokens to one of that shape.

    policy_logprobs ─┬─ importance_ratio, sequence_ratio ◀─ rollout_logprobs or proximal_logprobs
                     │        ▼
                     ├─ clipped_surrogate, clipped_weight_loss ◀─ advantages ──▶ policy loss ─┐
                     └─ reference_kl ◀───── reference_logprobs ──▶ KL ────────────────────────┴─▶ reductions

Notation: ℓ the policy's log-prob of the token now, with gradient; ℓ_b the behaviour's, when the token was sampled;
ℓ_ref the reference policy's; A the advantage. Engines serve newer weights while older turns wait, so the samples are
off-policy by design, and the importance ratio ρ = exp(ℓ − ℓ_b) is part of every term that is an expectation under
the policy.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from slime.algorithms.reductions import sequence_means

KlKind = Literal["k1", "k2", "k3", "low_var_kl", "full"]

_LOW_VAR_BOUND = 10.0


def importance_ratio(
    policy_logprobs: Tensor, behaviour_logprobs: Tensor, low: float = 0.0, high: float = math.inf
) -> Tensor:
    """ρ = π/π_b of each token, truncated to [low, high]: truncated importance sampling.

    Truncation bounds the weight of a token, not its say: its gradient is (truncated ρ)·∇ℓ, where clamping ρ
    itself would leave none. It acts on the denominator, as though the behaviour had been that close.

    >>> importance_ratio(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0]), high=2.0)
    tensor([1., 2.])
    """
    now = policy_logprobs.detach()
    farthest_below = now - math.log(high)
    farthest_above = now - math.log(low) if low > 0 else torch.full_like(now, math.inf)
    return torch.exp(policy_logprobs - behaviour_logprobs.clamp(min=farthest_below, max=farthest_above))


def sequence_ratio(
    policy_logprobs: Tensor, old_logprobs: Tensor, sequence_index: Tensor, low: float = 0.0, high: float = math.inf
) -> Tensor:
    """exp(mean of ℓ − ℓ_old over a token's sequence), at each of its tokens: GSPO-token (arXiv 2507.18071 eq. 14).

    The value is the sequence's, the gradient the token's own: s·∇ℓ_t. With one advantage for the whole
    sequence the mean over its tokens has GSPO's gradient; with one for each token it is still right.

    Args:
        sequence_index: [N], which sequence a token belongs to.
        low, high: what the sequence's ratio is truncated to.

    >>> sequence_ratio(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -3.0]), torch.tensor([0, 0]))
    tensor([2.7183, 2.7183])
    """
    log_ratios = sequence_means((policy_logprobs - old_logprobs).detach(), sequence_index)
    return torch.exp(log_ratios).clamp(low, high) * torch.exp(policy_logprobs - policy_logprobs.detach())


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float, eps_clip_c: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The pessimistic surrogate max(−ρA, −clip(ρ, 1 − eps_clip, 1 + eps_clip_high)·A), and where the clip acts.

    A token that has already moved far enough the way its advantage points gets no further push. An upper
    bound farther out than the lower one lets rare tokens that turned out well grow (DAPO, arXiv 2503.14476).

    Args:
        eps_clip_c: dual clip (arXiv 1912.09729): where A < 0 the loss is at most −c·A, so that a bad token
            whose ratio exploded does not take over the batch. Above 1; 0 is off.

    >>> clipped_surrogate(torch.tensor([1.5, 1.5]), torch.tensor([1.0, -1.0]), 0.2, 0.28)
    (tensor([-1.2800,  1.5000]), tensor([ True, False]))
    """
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1.0 - eps_clip, 1.0 + eps_clip_high) * advantages
    loss, is_clipped = torch.maximum(unclipped, clipped), clipped > unclipped
    if eps_clip_c:
        most = torch.where(advantages < 0, -eps_clip_c * advantages, torch.full_like(advantages, math.inf))
        loss, is_clipped = torch.minimum(loss, most), is_clipped | (loss > most)
    return loss, is_clipped


def clipped_weight_loss(
    policy_logprobs: Tensor, ratio: Tensor, advantages: Tensor, eps_clip: float, eps_clip_high: float
) -> tuple[Tensor, Tensor]:
    """−sg(clip(ρ, 1 − eps_clip, 1 + eps_clip_high))·A·ℓ, and where the clip acts: CISPO (arXiv 2506.13585 eq. 4–5).

    The weight is clipped, not the token: every token keeps its gradient. eps_clip 1 leaves the lower bound off.

    >>> clipped_weight_loss(torch.tensor([-2.0]), torch.tensor([3.0]), torch.tensor([1.0]), 0.2, 0.28)
    (tensor([2.5600]), tensor([True]))
    """
    weight = ratio.detach()
    clipped = weight.clamp(1.0 - eps_clip, 1.0 + eps_clip_high)
    return -clipped * advantages * policy_logprobs, clipped != weight


def reference_kl(policy_logprobs: Tensor, reference_logprobs: Tensor, ratio: Tensor | None, kind: KlKind) -> Tensor:
    """An estimate of KL(π ‖ π_ref) from the sampled tokens, whose gradient is an estimate of the KL's gradient.

    With x = ℓ − ℓ_ref the value is k1 = x, k2 = x²/2, k3 = e^−x − 1 + x, or low_var_kl: k3 with x and result held
    within ±10. The gradient is x·∇ℓ for all of them, with x held within ±10 for low_var_kl: then E[x·∇ℓ] under the
    policy is ∇KL, and every single token is pulled toward the reference. Differentiating the values would give that
    for k2 alone: E[∇k1] is 0, E[∇k3] is the gradient of KL(π_ref ‖ π), and a clamp has no gradient where it acts.

    Args:
        ratio: ρ from `importance_ratio`, a weight of value and gradient, which makes both expectations under the
            policy where older weights sampled; None is 1, right where the samples are the policy's own.

    >>> reference_kl(torch.tensor([-1.0, -5.0]), torch.tensor([-2.0, -2.0]), None, "k2")
    tensor([0.5000, 4.5000])
    """
    difference = (policy_logprobs - reference_logprobs).detach()
    if kind == "low_var_kl":
        difference = difference.clamp(-_LOW_VAR_BOUND, _LOW_VAR_BOUND)
    weight = torch.ones_like(difference) if ratio is None else ratio.detach()
    slope = policy_logprobs - policy_logprobs.detach()  # 0, with the gradient of ℓ
    return weight * (_kl_estimate(difference, kind) + difference * slope)


def _kl_estimate(difference: Tensor, kind: KlKind) -> Tensor:
    """What each token says of the KL, from x = ℓ − ℓ_ref: [N] → [N]."""
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        return torch.expm1(-difference) + difference
    if kind == "low_var_kl":
        return (torch.expm1(-difference) + difference).clamp(-_LOW_VAR_BOUND, _LOW_VAR_BOUND)
    raise ValueError(f"{kind!r} needs the whole distributions: use exact_kl")


def exact_kl(policy_logits: Tensor, reference_logits: Tensor) -> Tensor:
    """KL(π ‖ π_ref) summed over the vocabulary: [N, V] and [N, V] → [N]; exactly 0 for equal logits."""
    policy = torch.log_softmax(policy_logits, dim=-1)
    reference = torch.log_softmax(reference_logits, dim=-1)
    return (policy.exp() * (policy - reference)).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p of each row in nats: [N, V] → [N].

    >>> entropy(torch.zeros(1, 8))
    tensor([2.0794])
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)
