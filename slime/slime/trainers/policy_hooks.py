"""The hooks on the policy loss, bound to a micro-batch: slime's layout in, trainable tokens out.

losses [N] ─ split by sample ─ by response [R] ─▶ hook, sample by sample ─▶ trainable tokens only ─▶ [N]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.objective import PolicyHooks, Weighed
from slime.data.rows import FlatBatch
from slime.errors import PluginError
from slime.plugins.loading import describe
from slime.plugins.policy_loss import PolicyLossHooks
from slime.trainers.responses import by_response, response_lengths, total_lengths, trainable


@dataclass(frozen=True)
class BoundHooks:
    """The hooks, over a micro-batch.

    Attributes:
        values: by the names that a loss may ask for, over the trainable tokens of `flat`.
    """

    hooks: PolicyLossHooks
    values: Mapping[str, Any]
    flat: FlatBatch

    def of_objective(self) -> PolicyHooks:
        """What `policy_objective` takes; empty where no hook was asked for."""
        return PolicyHooks(self._weigh if self.hooks.weigh else None, self._reduce if self.hooks.reduce else None)

    def _weigh(self, losses: Tensor) -> Weighed:
        """[N] → losses, mask and figures, each [N]."""
        streams = {
            "train_log_probs": self.values["proximal_logprobs"],
            "rollout_log_probs": self.values["rollout_logprobs"],
        }
        found = [
            self.hooks.weighed({**offered, "pg_loss": pg_loss})
            for offered, pg_loss in self._samples(losses, torch.ones_like(losses), streams)
        ]
        weighed, masks, figures = zip(*found, strict=True)
        if any(of_sample.keys() != figures[0].keys() for of_sample in figures):
            assert self.hooks.weigh is not None
            place = describe(self.hooks.weigh.function)
            raise PluginError(f"{place} gave different metrics for different samples; a mean needs one of each")
        joined = {name: self._trainable(of_sample[name] for of_sample in figures) for name in figures[0]}
        return self._trainable(weighed), self._trainable(masks), joined

    def _reduce(self, losses: Tensor, kept: Tensor) -> Tensor:
        """[N] → the sum of what the hook makes of each sample."""
        per_token = {"calculate_per_token_loss": self.values["config"]["calculate_per_token_loss"]}
        samples = self._samples(losses, kept, {})
        numbers = [self.hooks.reduced({**offered, **per_token}, pg_loss) for offered, pg_loss in samples]
        return torch.stack(numbers).sum()

    def _samples(
        self, losses: Tensor, masks: Tensor, streams: Mapping[str, Tensor]
    ) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """What hooks are offered of each sample, and its losses."""
        flat = self.flat
        lists = {name: by_response(stream, flat) for name, stream in {**streams, "loss_masks": masks}.items()}
        lengths = {"total_lengths": total_lengths(flat), "response_lengths": response_lengths(flat)}
        settings = {"args": self.values["args"], "config": self.values["config"]}
        for index, pg_loss in enumerate(by_response(losses, flat)):
            yield {**settings, **{name: [entries[index]] for name, entries in (lists | lengths).items()}}, pg_loss

    def _trainable(self, responses: Iterable[Tensor]) -> Tensor:
        return trainable(torch.cat(list(responses)), self.flat)
