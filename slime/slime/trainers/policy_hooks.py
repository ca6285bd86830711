"""Hooks inside the policy loss, in slime's call style, for losses that are made with `policy_objective`.

losses [N] ─ by sample ─▶ of a response [R] ─ weigh ─▶ losses, mask, figures ─▶ trainable tokens only ─▶ [N]
                                            └ reduce ─▶ one number a sample ─▶ their sum

    --custom-tis-function-path               weigh: in the place of the weights of --behaviour-correction decoupled
    --custom-pg-loss-reducer-function-path   reduce: in the place of the mean, for the policy loss alone

Both are called for one sample at a time, with lists of one entry, so that packing cannot change what they give.
What comes out is checked here, and what they raise becomes an error that names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.objective import PolicyHooks, Weighed
from slime.config.sections import PluginConfig
from slime.data.rows import FlatBatch
from slime.errors import PluginError
from slime.plugins.calling import NamedCall, user_code
from slime.plugins.hooks import PG_REDUCER, TIS, asked_for
from slime.trainers.responses import by_response, response_lengths, total_lengths, trainable


@dataclass(frozen=True)
class PolicyLossHooks:
    """The hooks on the policy loss that were asked for."""

    weigh: NamedCall | None = None
    reduce: NamedCall | None = None

    def bound(self, values: Mapping[str, Any], flat: FlatBatch) -> PolicyHooks:
        """What `policy_objective` takes for a micro-batch; empty where no hook was asked for.

        Args:
            values: by the names that a loss may ask for, over the trainable tokens of `flat`.
        """
        return PolicyHooks(
            partial(_weigh, self.weigh, values, flat) if self.weigh else None,
            partial(_reduce, self.reduce, values, flat) if self.reduce else None,
        )


def load_policy_loss_hooks(plugin: PluginConfig) -> PolicyLossHooks:
    """The hooks of `--custom-tis-function-path` and `--custom-pg-loss-reducer-function-path`; raises as `load_hook`."""
    return PolicyLossHooks(asked_for(TIS, plugin), asked_for(PG_REDUCER, plugin))


def _weigh(hook: NamedCall, values: Mapping[str, Any], flat: FlatBatch, losses: Tensor) -> Weighed:
    """[N] → losses, mask and figures, each [N]."""

    def joined(responses: Iterable[Tensor]) -> Tensor:
        return trainable(torch.cat(list(responses)), flat)

    streams = {"train_log_probs": values["proximal_logprobs"], "rollout_log_probs": values["rollout_logprobs"]}
    samples = _samples(values, flat, losses, {**streams, "loss_masks": torch.ones_like(losses)})
    found = [weighed(hook, {**offered, "pg_loss": pg_loss}) for offered, pg_loss in samples]
    changed, masks, figures = zip(*found, strict=True)
    if any(of_sample.keys() != figures[0].keys() for of_sample in figures):
        raise PluginError(f"{hook.place} gave different metrics for different samples; a mean needs one of each")
    return joined(changed), joined(masks), {name: joined(each[name] for each in figures) for name in figures[0]}


def _reduce(hook: NamedCall, values: Mapping[str, Any], flat: FlatBatch, losses: Tensor, kept: Tensor) -> Tensor:
    """[N] → the sum of what the hook makes of each sample."""
    per_token = {"calculate_per_token_loss": values["config"]["calculate_per_token_loss"]}
    samples = _samples(values, flat, losses, {"loss_masks": kept})
    return torch.stack([reduced(hook, {**offered, **per_token}, pg_loss) for offered, pg_loss in samples]).sum()


def _samples(
    values: Mapping[str, Any], flat: FlatBatch, losses: Tensor, streams: Mapping[str, Tensor]
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """What hooks are offered of each sample, and its losses."""
    lists: dict[str, Sequence[Any]] = {name: by_response(stream, flat) for name, stream in streams.items()}
    lists |= {"total_lengths": total_lengths(flat), "response_lengths": response_lengths(flat)}
    settings = {"args": values["args"], "config": values["config"]}
    for index, pg_loss in enumerate(by_response(losses, flat)):
        yield {**settings, **{name: [entries[index]] for name, entries in lists.items()}}, pg_loss


def weighed(hook: NamedCall, offered: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """What a hook makes of the losses of one sample: losses, mask and figures, each over its response, [R].

    Args:
        offered: the names of `hooks.TIS`; `pg_loss` is [R].

    Raises:
        PluginError: it failed, or gave tensors of other shapes, numbers that are none, or no gradient.
    """
    place, given = hook.place, offered["pg_loss"]
    with user_code(place):
        result = hook(offered)
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise PluginError(f"{place} gave {_words(result)}; it gives (pg_loss, modified_masks, metrics)")
    losses, masks, figures = result
    if not isinstance(masks, Sequence) or len(masks) != 1:
        raise PluginError(f"{place} gave masks of {_words(masks)}; they are a list with a tensor for every sample")
    if not isinstance(figures, Mapping):
        raise PluginError(f"{place} gave metrics of type {type(figures).__name__}; they are a mapping of tensors")
    losses = _like(place, "pg_loss", losses, given)
    if given.requires_grad and not losses.requires_grad:
        raise PluginError(f"{place} gave a pg_loss without a gradient; weights are constants, the loss is not")
    mask = _like(place, "modified_masks[0]", masks[0], given).detach()
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise PluginError(f"{place} gave a mask with other values than 0 and 1; weigh pg_loss instead")
    figures = {str(name): _like(place, f"metric {name!r}", figure, given) for name, figure in figures.items()}
    return losses, mask, figures


def reduced(hook: NamedCall, offered: Mapping[str, Any], losses: Tensor) -> Tensor:
    """What a reducer makes of the losses of one sample, [R] → one number.

    Args:
        offered: the names of `hooks.PG_REDUCER`.

    Raises:
        PluginError: it failed, or gave no function, or that gave no number or no gradient.
    """
    place = hook.place
    with user_code(place):
        reducer = hook(offered)
    if not callable(reducer):
        raise PluginError(f"{place} gave {_words(reducer)}; it gives a function from losses to one number")
    with user_code(place):
        number = reducer(losses)
    if not isinstance(number, Tensor) or number.numel() != 1:
        raise PluginError(f"{place} reduced to {_words(number)}; a loss is a tensor of one number")
    if losses.requires_grad and not number.requires_grad:
        raise PluginError(f"{place} reduced to a number without a gradient")
    _check_finite(place, "a loss", number, losses)
    return number.reshape(())


def _like(place: str, what: str, value: Any, given: Tensor) -> Tensor:
    """The value as a tensor over the response, if it is one."""
    if not isinstance(value, Tensor) or value.numel() != given.numel():
        raise PluginError(f"{place} gave {_words(value)} as {what}; the response has {given.numel()} tokens")
    _check_finite(place, what, value, given)
    return value.to(given).reshape(given.shape)


def _check_finite(place: str, what: str, value: Tensor, given: Tensor) -> None:
    """Infinite losses are the model's fault, and the step is skipped; made from finite ones they are the plug-in's."""
    if bool(torch.isfinite(given).all()) and not bool(torch.isfinite(value).all()):
        raise PluginError(f"{place} gave {what} that is not finite")


def _words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
