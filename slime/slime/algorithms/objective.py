"""The policy objective that the methods share: what differs between them is the advantage.

loss = mean of  w · surrogate(ρ, A)  +  kl_loss_coef · KL(π ‖ π_ref)  −  entropy_coef · H(π)

    behaviour_correction   ρ is taken to     truncated   w
    tis                    the behaviour b   yes         1
    decoupled              the proximal p    no          clip(p/b)            of each token
    icepop                 p                 no          p/b or 0             of each token
    mis                    p                 no          of mis_level, mis_mode
    none                   p                 no          1                    as though the samples were fresh

A function of the user's may stand in for w, and for the mean of the policy loss (`PolicyHooks`).

    advantage_estimator    surrogate
    gspo                   clipped, ρ of the whole sequence
    cispo                  clipped weight times log-prob
    any other              clipped
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.corrections import behaviour_weights, off_policy_sequence_mask, veto_mask
from slime.algorithms.losses import (
    clipped_surrogate,
    clipped_weight_loss,
    importance_ratio,
    reference_kl,
    sequence_ratio,
)

Weighed = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Policy losses after weighing [N], 1 for the tokens that are kept and 0 for the others [N], figures by name [N]."""


Objective = Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]]
"""Advantages [N] → the loss of a micro-batch and its metrics: what a loss is offered as `policy_objective`."""


@dataclass(frozen=True, slots=True)
class PolicyHooks:
    """What stands in for parts of the policy loss; None where ours is wanted.

    Attributes:
        weigh: policy losses of tokens, [N] → `Weighed`: in the place of w.
        reduce: policy losses and what `weigh` kept, [N] each → one number: in the place of `mean`, there alone.
    """

    weigh: Callable[[Tensor], Weighed] | None = None
    reduce: Callable[[Tensor, Tensor], Tensor] | None = None


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
    proximal_logprobs: Tensor | None = None,
    sequence_index: Tensor | None = None,
    hooks: PolicyHooks = PolicyHooks(),
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch and its metrics.

    Rejected tokens leave the numerator only, and metrics of the mismatch are means over all tokens, so no bound can
    make them look better.

    Args:
        policy_logprobs, rollout_logprobs, reference_logprobs, advantages: [N]
        mean: how tokens are averaged: the trainer's `sum_of_sample_mean`.
        config: the loss's settings by name, as a loss is given them.
        compute_full_kl, compute_entropy: [N] each; called only where the configuration gives them a weight.
        proximal_logprobs: [N] at the start of the batch; needed by every correction but tis.
        sequence_index: [N], numbering the replies; needed where whole replies are weighed or masked.
        hooks: their figures become metrics `train/<name>`.

    Raises:
        ValueError: the configuration needs proximal_logprobs or sequence_index and it is not given.
    """
    terms = _Terms(policy_logprobs, rollout_logprobs, advantages, config, proximal_logprobs, sequence_index)
    each, is_clipped = terms.surrogate()
    weights = terms.weights(is_corrected=hooks.weigh is None)
    if weights is not None:
        each = each * weights
    kept = torch.ones_like(each)
    figures: Mapping[str, Tensor] = {}
    if hooks.weigh is not None:
        each, kept, figures = hooks.weigh(each)
        each = each * kept
        weights = kept if weights is None else weights * kept
    loss = policy_loss = mean(each) if hooks.reduce is None else hooks.reduce(each, kept)
    importance = terms.importance()
    metrics = {f"train/{name}": mean(figure.detach()) for name, figure in figures.items()} | {
        "loss/policy": policy_loss.detach(),
        "train/clip_fraction": mean(is_clipped.to(each)),
        "train/importance_weight_mean": mean(importance.detach()),
        "train/rollout_kl": mean(terms.rollout_kl()),
    }
    if weights is not None:
        metrics["train/rejected_fraction"] = mean((weights == 0).to(each))
    if config["kl_loss_coef"]:
        if config["kl_loss_type"] == "full":
            kl = mean(compute_full_kl())
        else:
            ratio = importance if config["use_unbiased_kl"] else None
            kl = mean(reference_kl(policy_logprobs, reference_logprobs, ratio, config["kl_loss_type"]))
        loss = loss + config["kl_loss_coef"] * kl
        metrics["loss/kl"] = kl.detach()
    if config["entropy_coef"]:
        loss = loss - config["entropy_coef"] * mean(compute_entropy())
    return loss, metrics


@dataclass(frozen=True)
class _Terms:
    """What the objective is made of, as the configuration says."""

    policy: Tensor
    rollout: Tensor
    advantages: Tensor
    config: Mapping[str, Any]
    given_proximal: Tensor | None
    given_index: Tensor | None

    @property
    def correction(self) -> str:
        return str(self.config["behaviour_correction"])

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the truncated importance ratio."""
        return self.config["tis_clip_low"], self.config["tis_clip"]

    def surrogate(self) -> tuple[Tensor, Tensor]:
        """The policy loss of each token, before weights, and where the clip acts."""
        config = self.config
        clip = config["eps_clip"], config["eps_clip_high"]
        anchor, bounds = (self.rollout, self.bounds) if self.correction == "tis" else (self._proximal, ())
        if config["advantage_estimator"] == "gspo":
            ratio = sequence_ratio(self.policy, anchor, self._sequence_index, *bounds)
        else:
            ratio = importance_ratio(self.policy, anchor, *bounds)
        if config["advantage_estimator"] == "cispo":
            return clipped_weight_loss(self.policy, ratio, self.advantages, *clip)
        return clipped_surrogate(ratio, self.advantages, *clip, config["eps_clip_c"])

    def weights(self, *, is_corrected: bool) -> Tensor | None:
        """What the policy loss of each token is multiplied by; None where that is 1 for all.

        Args:
            is_corrected: whether the correction's own weights are among it.
        """
        config = self.config
        weights: list[Tensor] = []
        if is_corrected and self.correction in ("decoupled", "icepop", "mis"):
            level, mode = {
                "decoupled": ("token", "clip"),
                "icepop": ("token", "mask"),
                "mis": (config["mis_level"], config["mis_mode"]),
            }[self.correction]
            index = torch.zeros(()) if level == "token" else self._sequence_index
            low, high = self.bounds
            weights.append(
                behaviour_weights(self._proximal, self.rollout, index, level=level, mode=mode, low=low, high=high)
            )
            if self.correction == "mis" and (threshold := config["mis_veto_threshold"]):
                weights.append(veto_mask(self._proximal, self.rollout, self._sequence_index, threshold))
        if config["use_opsm"]:
            index, delta = self._sequence_index, config["opsm_delta"]
            weights.append(off_policy_sequence_mask(self.policy, self.rollout, self.advantages, index, delta))
        return functools.reduce(torch.mul, weights).to(self.policy) if weights else None

    def importance(self) -> Tensor:
        """π/b of each token, truncated, with gradient; π/p where no correction is wanted."""
        if self.correction == "none":
            return importance_ratio(self.policy, self._proximal)
        return importance_ratio(self.policy, self.rollout, *self.bounds)

    def rollout_kl(self) -> Tensor:
        """An estimate of KL(b ‖ π) of each token, e^x − 1 − x with x = ℓ − ℓ_b; never negative."""
        log_ratio = (self.policy - self.rollout).detach()
        return torch.expm1(log_ratio) - log_ratio

    @property
    def _proximal(self) -> Tensor:
        if self.given_proximal is None:
            raise ValueError(f"behaviour correction {self.correction!r} needs proximal_logprobs")
        return self.given_proximal

    @property
    def _sequence_index(self) -> Tensor:
        if self.given_index is None:
            raise ValueError("a term over whole sequences needs sequence_index")
        return self.given_index
