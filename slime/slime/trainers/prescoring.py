"""The forward pass over a whole batch before its first optimizer step: proximal log-probs, reference KL, values.

    Batch ─ rows ─ plan ─▶ this rank's micro-batches ─ score ─▶ streams ─ sum over ranks ─▶ Batch with streams

Each rank computes its share, and all of them end with all of it, because advantages are taken over the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from slime.algorithms.losses import reference_kl
from slime.config.sections import LossConfig, TrainerConfig
from slime.data.outcomes import with_later_rewards
from slime.data.packing import plan
from slime.data.prefix_sharing import share_prefixes
from slime.data.rows import FlatBatch, Row, rows
from slime.plugins.losses import LossHook
from slime.trainers.loss_values import ScoredBatch
from slime.trainers.ranks import Ranks
from slime.types import Batch, Sample

_OF_TEACHERS = {"untempered_rollout_logprobs", "tempered_teacher_logprobs", "batch"}
_PLACE = "place in the batch"  # a stream: which of the batch's trainable tokens a token of a micro-batch is


@dataclass(frozen=True)
class Prescorer:
    """Gives the samples of a batch the streams that its losses and advantages need beforehand, if any.

    Args:
        score: runs policy and reference over a micro-batch: (rows, sizes of their trajectories) → `ScoredBatch`.
        values: a critic's: (micro-batch, the policy's hidden states [T, H]) → what is expected before each trainable
            token, [N]; None without a critic.
    """

    trainer: TrainerConfig
    loss: LossConfig
    loss_fn: LossHook
    score: Callable[[Sequence[Row], Sequence[int]], ScoredBatch]
    values: Callable[[FlatBatch, Tensor], Tensor] | None
    ranks: Ranks

    @cached_property
    def names(self) -> list[str]:
        """The streams that are computed."""
        asks_for_teacher = bool(self.loss_fn.asks_for & _OF_TEACHERS)
        asks_for_proximal = asks_for_teacher or "proximal_logprobs" in self.loss_fn.asks_for
        has_several_steps = self.trainer.num_steps_per_rollout > 1
        needed = {
            "proximal_logprobs": has_several_steps and (asks_for_proximal or self.loss.behaviour_correction != "tis"),
            "proximal_at_one": has_several_steps and asks_for_teacher,
            "reference_kl": self.loss.kl_coef > 0,
            "old_values": self.values is not None,
        }
        return [name for name, is_needed in needed.items() if is_needed]

    def __call__(self, batch: Batch) -> Batch:
        """The batch with a stream for each of `names`, and with what comes later where the loss looks ahead."""
        if self.loss_fn.looks_ahead:
            batch = with_later_rewards(batch)
        return batch.with_samples(self._with_streams(batch.samples)) if self.names else batch

    @torch.no_grad()
    def _with_streams(self, samples: Sequence[Sample]) -> list[Sample]:
        all_rows = rows(samples)
        counts = [row.num_trainable for row in all_rows]
        places = torch.split(torch.arange(sum(counts)), counts)
        trained = [index for index, count in enumerate(counts) if count]
        placed = [
            replace(row, streams={**row.streams, _PLACE: place}) for row, place in zip(all_rows, places, strict=True)
        ]
        names = [samples[index].trajectory_id or f"sample {index}" for index in trained]
        fed, _ = share_prefixes([placed[index] for index in trained], names, [counts[index] for index in trained])
        found = torch.zeros(len(self.names), sum(counts))
        lengths = [row.length for row in fed]
        for micro in plan(lengths, self.trainer.max_tokens_per_gpu, self.ranks.world_size)[self.ranks.rank]:
            scored = self.score([fed[i] for i in micro], [fed[i].num_trainable for i in micro])
            found[:, scored.flat.streams[_PLACE].cpu()] = self._scores(scored)
        found = self.ranks.sum_tensor(found)
        return [
            self._with_scores(sample, row, found[:, place])
            for sample, row, place in zip(samples, all_rows, places, strict=True)
        ]

    def _scores(self, scored: ScoredBatch) -> Tensor:
        """[names, N] over a micro-batch's trainable tokens."""
        streams = {"proximal_logprobs": scored.policy_logprobs}
        if "proximal_at_one" in self.names:
            streams["proximal_at_one"] = scored.policy_head.untempered_logprobs(scored.flat.targets)
        if self.values is not None:
            streams["old_values"] = self.values(scored.flat, scored.hidden)
        if "reference_kl" in self.names:
            assert scored.reference_logprobs is not None  # kl_coef > 0 loads a reference
            # k1 whatever --kl-loss-type: A = −x makes the gradient E[x·∇ℓ] = ∇KL; no other estimate does
            streams["reference_kl"] = reference_kl(scored.policy_logprobs, scored.reference_logprobs, None, "k1")
        return torch.stack([streams[name].float().cpu() for name in self.names])

    def _with_scores(self, sample: Sample, row: Row, scores: Tensor) -> Sample:
        positions = row.predictors + 1
        streams = {
            name: torch.zeros(len(sample.token_ids)).index_copy(0, positions, values).tolist()
            for name, values in zip(self.names, scores, strict=True)
        }
        return replace(sample, streams={**sample.streams, **streams})
