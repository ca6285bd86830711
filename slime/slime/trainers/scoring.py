"""The forward pass and the loss of a micro-batch.

Rows ─ flatten ─▶ policy, reference ─ score ─▶ ScoredBatch ─ evaluate ─▶ loss, metrics
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.reductions import Reduction
from slime.data.rows import FlatBatch, Row, flatten
from slime.plugins.losses import LossHook
from slime.trainers.loss_values import LossValues, ScoredBatch
from slime.trainers.policy_hooks import PolicyLossHooks
from slime.trainers.token_head import TokenHead

Forward = Callable[[FlatBatch], tuple[Tensor, TokenHead]]
"""A language model as a loss needs it: the last hidden states of every fed token, [T, H], and the output layer over
those that predict a trainable one."""


@dataclass
class Scorer:
    """What a policy and a loss make of micro-batches.

    Args:
        reference: of the KL; None where nothing is compared with it.
        device: where both compute.
        reduction: how tokens are averaged.
        settings: what the loss is offered as `config`.
        hooks: on the policy loss, for losses that ask for them.
    """

    policy: Forward
    reference: Forward | None
    device: torch.device
    reduction: Reduction
    loss_fn: LossHook
    settings: Mapping[str, Any]
    hooks: PolicyLossHooks

    @property
    def sees_samples(self) -> bool:
        """Whether a row must be one sample: the loss, or a hook on it, reads which tokens are."""
        return self.loss_fn.sees_samples or self.hooks != PolicyLossHooks()

    def score(self, micro: Sequence[Row], sizes: Sequence[int]) -> ScoredBatch:
        """Run policy and reference over a micro-batch.

        Args:
            sizes: trainable tokens of each row's trajectory.
        """
        flat = flatten(micro).to(self.device)
        hidden, head = self.policy(flat)
        weights = self.reduction.weights(sizes, flat.counts).to(self.device, torch.float32)
        scored = ScoredBatch(flat, weights, hidden, head, *head.logprobs_and_entropy(flat.targets))
        if self.reference is None:
            return scored
        with torch.no_grad():
            _, reference = self.reference(flat)
            reference_logprobs, _ = reference.logprobs_and_entropy(flat.targets)
        return replace(scored, reference_head=reference, reference_logprobs=reference_logprobs)

    def evaluate(self, scored: ScoredBatch) -> tuple[Tensor, Mapping[str, float]]:
        """The loss of a micro-batch: its share of the sum over trajectories.

        A loss that takes means of its own is given one sample at a time, and its means are weighted by the
        sample's share of its trajectory, so that packing cannot change it either.
        """
        if self.loss_fn.is_sum_over_samples:
            return self.loss_fn(LossValues(scored, self.settings, self.hooks))
        total = scored.policy_logprobs.new_zeros(())
        metrics: Counter[str] = Counter()
        for document in scored.documents():
            if self.loss_fn.divides_by_its_mask and not bool(document.flat.streams["has_teacher"].any()):
                continue
            share = float(document.weights.sum())
            loss, parts = self.loss_fn(LossValues(document, self.settings, self.hooks))
            total = total + share * loss
            metrics.update({name: share * value for name, value in parts.items()})
        return total, metrics
