"""The inputs of a loss by name: tensors over the trainable tokens of a micro-batch, each made when it is read.

    FlatBatch ─ policy ─▶ ScoredBatch ─▶ LossValues["policy_logprobs"] … ─▶ loss(…)

The names are those of `slime.plugins.hooks.LOSS` and of every registered field. Published files that ask
for `reference_logprobs` where no reference model is loaded get the log-probs of sampling time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.distillation import untempered
from slime.algorithms.objective import policy_objective
from slime.algorithms.reductions import sum_of_means
from slime.data.rows import FlatBatch
from slime.errors import PluginError
from slime.trainers.policy_hooks import PolicyLossHooks
from slime.trainers.responses import response_lengths, trainable
from slime.trainers.token_head import TokenHead

_OF_TOKENS = ("weights", "policy_head", "policy_logprobs", "entropies", "reference_head", "reference_logprobs")
"""What a scored batch holds of its trainable tokens."""


@dataclass(frozen=True)
class ScoredBatch:
    """A flat batch and what the models make of it.

    Attributes:
        weights: [N] of each trainable token: 1 / trainable tokens of its trajectory.
        hidden: [T, H] of all fed tokens.
        policy_head, reference_head: over the trainable tokens.
        policy_logprobs: [N] with gradient.
        entropies: [N] without gradient.
        reference_logprobs: [N]; None where there is no reference model.
    """

    flat: FlatBatch
    weights: Tensor
    hidden: Tensor
    policy_head: TokenHead
    policy_logprobs: Tensor
    entropies: Tensor
    reference_head: TokenHead | None = None
    reference_logprobs: Tensor | None = None

    def documents(self) -> Iterator[ScoredBatch]:
        """Each document by itself, sharing its tensors with the whole."""
        flat = self.flat
        of_tokens = {name: value for name in _OF_TOKENS if (value := getattr(self, name)) is not None}
        fed_ends, trained_ends = accumulate(flat.document_lens), accumulate(flat.counts)
        for length, count, fed_end, end in zip(flat.document_lens, flat.counts, fed_ends, trained_ends, strict=True):
            fed, trained = slice(fed_end - length, fed_end), slice(end - count, end)
            part = replace(
                flat,
                token_ids=flat.token_ids[fed],
                position_ids=flat.position_ids[fed],
                document_lens=(length,),
                predictors=flat.predictors[trained] - fed.start,
                targets=flat.targets[trained],
                streams={name: stream[trained] for name, stream in flat.streams.items()},
                counts=(count,),
            )
            yield replace(self, flat=part, hidden=self.hidden[fed], **{n: v[trained] for n, v in of_tokens.items()})


@dataclass(frozen=True, eq=False)
class LossValues(Mapping[str, Any]):
    """The names on offer and their values; nothing costs anything until it is asked for.

    Attributes:
        settings: the loss's configuration with the published spellings, offered as `config`.
        hooks: on the policy loss, in what is offered as `policy_objective`.
    """

    scored: ScoredBatch
    settings: Mapping[str, Any]
    hooks: PolicyLossHooks = PolicyLossHooks()

    def __getitem__(self, name: str) -> Any:
        return OF_BATCH[name](self) if name in OF_BATCH else self.flat.streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.flat.streams, **OF_BATCH})

    def __len__(self) -> int:
        return len(self.flat.streams.keys() | OF_BATCH.keys())

    @property
    def flat(self) -> FlatBatch:
        """The tokens behind the values."""
        return self.scored.flat

    def sum_of_sample_mean(self, values: Tensor) -> Tensor:
        """The sum over the micro-batch's samples of their share of their trajectory's token mean.

        Args:
            values: over the trainable tokens or, in slime's style, over the responses.
        """
        if values.numel() == len(self.scored.weights):
            return sum_of_means(values.flatten(), self.scored.weights)
        if values.numel() == sum(response_lengths(self.flat)):
            return sum_of_means(trainable(values.flatten(), self.flat), self.scored.weights)
        raise PluginError(
            f"sum_of_sample_mean got {values.numel()} values; the micro-batch has {len(self.scored.weights)} "
            f"trainable tokens, in responses of {sum(response_lengths(self.flat))} tokens"
        )

    def _policy_objective(self, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss that the settings describe, with these advantages of the trainable tokens, [N]."""
        return policy_objective(
            self["policy_logprobs"],
            self["rollout_logprobs"],
            self["reference_logprobs"],
            advantages,
            mean=self.sum_of_sample_mean,
            config=self.settings,
            compute_full_kl=self["compute_full_kl"],
            compute_entropy=self["compute_entropy"],
            proximal_logprobs=self["proximal_logprobs"],
            sequence_index=self["sequence_index"],
            hooks=self.hooks.bound(self, self.flat),
        )

    def _proximal_logprobs(self) -> Tensor:
        """By the weights at the start of the batch; in its first and only step, those of now."""
        now = self.scored.policy_logprobs.detach()
        known = self.flat.streams["proximal_logprobs"]
        return torch.where(known.isnan(), now, known)

    def _untempered_rollout_logprobs(self) -> Tensor:
        """The behaviour's at temperature 1, as a teacher's are; the engine's own numbers where it sampled at 1."""
        streams = self.flat.streams
        rollout, temperatures = streams["rollout_logprobs"], streams["temperature"]
        if bool((temperatures == 1).all()):
            return rollout
        at_one = streams["proximal_at_one"]
        if bool(at_one.isnan().any()):  # no step was made since the batch began
            at_one = self.scored.policy_head.untempered_logprobs(self.flat.targets)
        return untempered(rollout, self._proximal_logprobs(), at_one, temperatures)

    def _tempered_teacher_logprobs(self) -> Tensor:
        """The teacher's, moved as the temperature moved the behaviour's, to be compared with the policy's.

        Where no teacher spoke they are the policy's, with gradient, so that whatever is made of the difference is 0.
        """
        streams = self.flat.streams
        moved = streams["rollout_logprobs"] - self._untempered_rollout_logprobs()
        return self._teacher_logprobs(streams["teacher_logprobs"] + moved)

    def _teacher_logprobs(self, measured: Tensor) -> Tensor:
        return torch.where(self.flat.streams["has_teacher"], measured, self.scored.policy_logprobs)

    def _sample_index(self) -> Tensor:
        counts = torch.tensor(self.flat.counts, device=self.flat.targets.device)
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def _sequence_index(self) -> Tensor:
        """Numbers the replies: the turns of each sample, or the sample where its tokens have no turns."""
        pairs = torch.stack([self["sample_index"], self["turn_index"]], dim=1)
        numbered: Tensor = torch.unique(pairs, dim=0, return_inverse=True)[1]
        return numbered

    def _reference_logprobs(self) -> Tensor:
        known = self.scored.reference_logprobs
        return self.flat.streams["rollout_logprobs"] if known is None else known

    def _full_kl(self) -> Tensor:
        """The exact KL to the reference, [N]; zeros where there is no reference model."""
        reference = self.scored.reference_head
        if reference is None:
            return torch.zeros_like(self.scored.policy_logprobs)
        return self.scored.policy_head.kl_to(reference)


OF_BATCH: dict[str, Callable[[LossValues], Any]] = {
    "policy_logprobs": lambda values: values.scored.policy_logprobs,
    "proximal_logprobs": LossValues._proximal_logprobs,
    "untempered_rollout_logprobs": LossValues._untempered_rollout_logprobs,
    "teacher_logprobs": lambda values: values._teacher_logprobs(values.flat.streams["teacher_logprobs"]).detach(),
    "tempered_teacher_logprobs": LossValues._tempered_teacher_logprobs,
    "advantage_mask": lambda values: values.flat.streams["has_teacher"].float(),
    "reference_logprobs": LossValues._reference_logprobs,
    "sequence_index": LossValues._sequence_index,
    "sample_index": LossValues._sample_index,
    "policy_topk_logprobs": lambda values: values.scored.policy_head.topk_logprobs,
    "policy_topk_and_tail_logprobs": lambda values: values.scored.policy_head.topk_and_tail_logprobs,
    "compute_entropy": lambda values: values.scored.policy_head.entropy,
    "compute_full_kl": lambda values: values._full_kl,
    "sum_of_sample_mean": lambda values: values.sum_of_sample_mean,
    "policy_objective": lambda values: values._policy_objective,
    "config": lambda values: values.settings,
    "clip_ratio": lambda values: values.settings["eps_clip"],
    "binary_weight": lambda values: values.settings["w_rl"],
    "opd_weight": lambda values: values.settings["w_opd"],
}
"""What is on offer beside the streams, and what makes it; code for another library's losses adds its own names."""
