"""The hooks on the policy loss, bound to a micro-batch: tensors over trainable tokens in, slime's layout for the hooks.

losses [N] ─ split by sample ─ by response [R] ─▶ hook, sample by sample ─▶ trainable tokens only ─▶ [N]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.objective import PolicyHooks, Weighed
from slime.data.rows import FlatBatch
from slime.errors import PluginError
from slime.plugins.loading import describe
from slime.plugins.policy_loss import PolicyLossHooks
from slime.trainers import responses as responses
from slime.trainers.responses import by_response, response_lengths, total_lengths, trainable


def bind(
    hooks: PolicyLossHooks, values: Mapping[str, Any], flat: FlatBatch, settings: Mapping[str, Any]
) -> PolicyHooks:
    """What `policy_objective` takes, for a micro-batch; empty where no hook was asked for.

    Args:
        values: by the names that a loss may ask for, over the trainable tokens of `flat`.
    """
    bound = _Bound(hooks, values, flat, settings)
    return PolicyHooks(
        bound.weigh if hooks.weigh is not None else None, bound.reduce if hooks.reduce is not None else None
    )


class _Bound:
    def __init__(
        self, hooks: PolicyLossHooks, values: Mapping[str, Any], flat: FlatBatch, settings: Mapping[str, Any]
    ) -> None:
        self._hooks = hooks
        self._values = values
        self._flat = flat
        self._settings = settings

    def weigh(self, losses: Tensor) -> Weighed:
        """[N] → losses, mask and figures, each [N]."""
        found: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []
        streams = {
            "train_log_probs": self._values["proximal_logprobs"],
            "rollout_log_probs": self._values["rollout_logprobs"],
        }
        for offered, pg_loss in self._samples(losses, torch.ones_like(losses), streams):
            found.append(self._hooks.weighed({**offered, "pg_loss": pg_loss}))
        names = found[0][2].keys()
        if any(figures.keys() != names for _, _, figures in found):
            assert self._hooks.weigh is not None
            place = describe(self._hooks.weigh.function)
            raise PluginError(f"{place} gave different metrics for different samples; a mean needs one of each")
        return (
            self._trainable([weighed for weighed, _, _ in found]),
            self._trainable([mask for _, mask, _ in found]),
            {name: self._trainable([figures[name] for _, _, figures in found]) for name in names},
        )

    def reduce(self, losses: Tensor, kept: Tensor) -> Tensor:
        """[N] → the sum of what the hook makes of each sample."""
        numbers = [
            self._hooks.reduced(
                {**offered, "calculate_per_token_loss": self._settings["calculate_per_token_loss"]}, pg_loss
            )
            for offered, pg_loss in self._samples(losses, kept, {})
        ]
        return torch.stack(numbers).sum()

    def _samples(
        self, losses: Tensor, masks: Tensor, streams: Mapping[str, Tensor]
    ) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """What hooks are offered of each sample, and its losses."""
        flat = self._flat
        lists: dict[str, list[Any]] = {
            name: by_response(stream, flat) for name, stream in {**streams, "loss_masks": masks}.items()
        }
        lists |= {
            "total_lengths": total_lengths(flat),
            "response_lengths": response_lengths(flat),
        }
        settings = {"args": self._values["args"], "config": self._settings}
        for index, pg_loss in enumerate(by_response(losses, flat)):
            yield {**settings, **{name: [entries[index]] for name, entries in lists.items()}}, pg_loss

    def _trainable(self, responses: list[Tensor]) -> Tensor:
        return trainable(torch.cat(responses), self._flat)
