"""The policy objective that the methods share: what differs between them is the advantage.

loss = mean of  clipped surrogate(ρ, A)  +  kl_loss_coef · KL(π ‖ π_ref)  −  entropy_coef · H(π)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from slime.algorithms.losses import clipped_surrogate, importance_ratio, reference_kl


def policy_objective(
    policy_logprobs: Tensor,
    rollout_logprobs: Tensor,
    reference_logprobs: Tensor,
    advantages: Tensor,
    *,
    mean: Callable[[Tensor], Tensor],
    config: Mapping[str, Any],
    compute_full_kl: Callable[[], Tensor],
    compute_entropy: Callable[[], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch and its metrics.

    The ratio is taken against the engine's log-probs, truncated to [tis_clip_low, tis_clip]: one correction for
    old weights and for the engine computing a little differently.

    Args:
        policy_logprobs, rollout_logprobs, reference_logprobs, advantages: [N]
        mean: how tokens are averaged: the trainer's `sum_of_sample_mean`.
        config: eps_clip, eps_clip_high, tis_clip, tis_clip_low, kl_loss_coef, kl_loss_type, entropy_coef.
        compute_full_kl, compute_entropy: [N] each; called only where the configuration gives them a weight.
    """
    ratio = importance_ratio(policy_logprobs, rollout_logprobs, config["tis_clip_low"], config["tis_clip"])
    surrogate, is_clipped = clipped_surrogate(ratio, advantages, config["eps_clip"], config["eps_clip_high"])
    loss = policy_loss = mean(surrogate)
    metrics = {
        "loss/policy": policy_loss.detach(),
        "train/clip_fraction": mean(is_clipped.to(ratio)),
        "train/importance_weight_mean": mean(ratio.detach()),
    }
    if config["kl_loss_coef"]:
        if config["kl_loss_type"] == "full":
            kl = mean(compute_full_kl())
        else:
            kl = mean(reference_kl(policy_logprobs, reference_logprobs, ratio, config["kl_loss_type"]))
        loss = loss + config["kl_loss_coef"] * kl
        metrics["loss/kl"] = kl.detach()
    if config["entropy_coef"]:
        loss = loss - config["entropy_coef"] * mean(compute_entropy())
    return loss, metrics
