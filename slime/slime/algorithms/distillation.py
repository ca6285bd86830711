"""Learning from a teacher that has read the hint: its opinion of what the policy wrote, and of what it might have.

    sampled token    ℓ_T − ℓ_b, both at temperature 1 ───▶ advantage of the token
    k ids a token    ℓ, ℓ_T on a support S, and a tail ──▶ divergence over k + 1 bins
                     ℓ, ℓ_old, ℓ_T on S ─────────────────▶ clipped surrogate of every id in S

Notation as in `losses`, and ℓ_T the teacher's log-prob under the hint-augmented prompt, at temperature 1. A support is
a mask over k ids a token: the ids that count; what stands elsewhere is never read and has no gradient.

A reply may have been sampled at another temperature T. The behaviour's log-probs are carried to 1 before they are
compared, so that a teacher which agrees with the policy teaches nothing at any T. With z the logits,

    ℓ(T) = z/T − logsumexp(z/T)   ⇒   ℓ(1) = T·ℓ(T) + c,   c = T·logsumexp(z/T) − logsumexp(z)

and c depends on the context, not on the token: taken from the proximal policy p, which is not quite the behaviour
(older weights, an engine's rounding), it is wrong by a baseline, which leaves the expected gradient as it is.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from slime.algorithms.losses import clipped_surrogate

Divergence = Literal["reverse_kl", "forward_kl", "js"]

_LARGEST_SUM = 1.0 - 1e-7
"""Of probabilities in a support: the tail keeps a finite log, as float32 can hold it."""

_SMALLEST_TAIL = -80.0
"""Log-prob of a tail that is told: e^−80 is still a float32."""


def untempered(
    behaviour_logprobs: Tensor, proximal_logprobs: Tensor, proximal_at_one: Tensor, temperatures: Tensor
) -> Tensor:
    """ℓ_b at temperature 1, up to a baseline: T·ℓ_b(T) + c_p = ℓ_p(1) + T·(ℓ_b(T) − ℓ_p(T)); [N] each.

    Where the token was sampled at 1 it is the engine's own number.

    Args:
        behaviour_logprobs, proximal_logprobs: at the temperature of sampling.
        proximal_at_one: of the proximal policy at temperature 1.

    >>> half = torch.tensor([0.5])
    >>> untempered(torch.tensor([-0.2]), torch.tensor([-0.1]), torch.tensor([-0.4]), half)
    tensor([-0.4500])
    """
    carried = proximal_at_one + temperatures * (behaviour_logprobs - proximal_logprobs)
    return torch.where(temperatures == 1, behaviour_logprobs, carried)


def distillation_advantage(
    teacher_logprobs: Tensor, behaviour_logprobs: Tensor, has_teacher: Tensor, clip: float = math.inf
) -> Tensor:
    """ℓ_T − ℓ_b where a teacher spoke, exactly 0 elsewhere: [N] each.

    Its expectation under the behaviour is −KL(π_b ‖ π_T): following it, the policy becomes its teacher.

    Args:
        behaviour_logprobs: at temperature 1, as the teacher's are; see `untempered`.
        clip: the difference is held within ±clip, so that no token outweighs a batch; 0: unbounded.

    >>> distillation_advantage(torch.tensor([-0.5, -9.0]), torch.tensor([-2.0, -1.0]), torch.tensor([True, False]))
    tensor([1.5000, 0.0000])
    """
    difference = teacher_logprobs - behaviour_logprobs
    if clip:
        difference = difference.clamp(-clip, clip)
    return torch.where(has_teacher.bool(), difference, torch.zeros_like(difference))


def with_tail(logprobs: Tensor, support: Tensor, tail: Tensor | None = None) -> Tensor:
    """Log-probs of k ids and, in one more bin, of all others together: [N, k] and its mask → [N, k + 1].

    Bins outside the support hold 0, for the callers that multiply them by a probability of 0.

    Args:
        tail: log-prob of all others, [N], where it is known. Else it is 1 less the sum, which near 1 is rounding in
            value and in gradient: at a gap of 20 between logits float32 has nothing left of it.

    >>> with_tail(torch.tensor([[0.5, 0.25]]).log(), torch.tensor([[True, True]])).exp()
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    inside = torch.where(support, logprobs, torch.zeros_like(logprobs))
    if tail is not None:
        return torch.cat([inside, tail[:, None].clamp(min=_SMALLEST_TAIL)], dim=-1)
    total = (inside.exp() * support).sum(-1, keepdim=True)
    total = total - (total - _LARGEST_SUM).clamp(min=0).detach()  # a bound on the value, none on its gradient
    return torch.cat([inside, torch.log1p(-total)], dim=-1)


def binned_divergence(
    policy_logprobs: Tensor,
    teacher_logprobs: Tensor,
    support: Tensor,
    kind: Divergence = "reverse_kl",
    policy_tail: Tensor | None = None,
) -> Tensor:
    """How far the policy is from its teacher over the support and the tail, a token at a time: [N, k] each → [N].

    reverse KL(π ‖ π_T) seeks one of the teacher's modes, forward KL(π_T ‖ π) covers all of them, js is the mean of
    both to the mixture and stays below log 2. Grouping ids into bins never makes any of them larger, and over the
    whole vocabulary they are exact. A token without a support has none: 0, and no gradient.

    Args:
        policy_tail: the policy's log-prob of all ids outside the support, [N]; the exact gradient needs it where the
            policy is nearly certain.

    >>> binned_divergence(torch.tensor([[0.5]]).log(), torch.tensor([[0.25]]).log(), torch.tensor([[True]]))
    tensor([0.1438])
    """
    policy, teacher = with_tail(policy_logprobs, support, policy_tail), with_tail(teacher_logprobs, support)
    counts = torch.cat([support, support.any(dim=-1, keepdim=True)], dim=-1)
    if kind == "reverse_kl":
        return _kl(policy, teacher, counts)
    if kind == "forward_kl":
        return _kl(teacher, policy, counts)
    mixture = torch.logaddexp(policy, teacher) - torch.log(policy.new_tensor(2.0))
    return (_kl(policy, mixture, counts) + _kl(teacher, mixture, counts)) / 2


def _kl(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    return (left.exp() * (left - right) * counts).sum(-1)


def item_surrogate(
    policy_logprobs: Tensor,
    old_logprobs: Tensor,
    teacher_logprobs: Tensor,
    support: Tensor,
    *,
    clip: float,
    eps_clip: float,
    eps_clip_high: float,
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of every id in a support, summed: [N, k] each → [N], and the share of ids that it clips.

    An id v has the advantage A_v = w_v · d_v with w = softmax(ℓ_old) over the support, so that unlikely ids weigh
    little, and d_v = ℓ_T(v) − ℓ_old(v) held within ±clip, so that none is driven out at once.

    Args:
        policy_logprobs: ℓ now, with gradient.
        old_logprobs: ℓ when the reply was scored, without.
    """
    weights = torch.where(support, old_logprobs, torch.full_like(old_logprobs, -torch.inf))
    weights = torch.nan_to_num(torch.softmax(weights, dim=-1))  # a row without support is all nan
    zero = torch.zeros_like(old_logprobs)
    advantages = weights * torch.where(support, teacher_logprobs - old_logprobs, zero).clamp(-clip, clip)
    ratio = torch.exp(torch.where(support, policy_logprobs - old_logprobs, zero))
    surrogate, is_clipped = clipped_surrogate(ratio, advantages, eps_clip, eps_clip_high)
    share = (is_clipped & support).sum(-1) / support.sum(-1).clamp(min=1)
    return (surrogate * support).sum(-1), share
