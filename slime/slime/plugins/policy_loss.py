"""Hooks inside the policy loss, in slime's call style, for losses that are made with `policy_objective`.

    policy losses of a sample's response ─ weigh ─▶ (losses, masks, figures) ─ reduce ─▶ one number

    --custom-tis-function-path               weigh: in the place of the weights of --behaviour-correction decoupled
    --custom-pg-loss-reducer-function-path   reduce: in the place of the mean, for the policy loss alone

Both are called for one sample at a time, with lists of one entry, so that packing cannot change what they give.
What comes out is checked here, and what they raise becomes an error that names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slime.config.sections import PluginConfig
from slime.errors import PluginError
from slime.plugins.calling import NamedCall, user_code
from slime.plugins.hooks import PG_REDUCER, TIS, asked_for


@dataclass(frozen=True)
class PolicyLossHooks:
    """The hooks on the policy loss that were asked for."""

    weigh: NamedCall | None = None
    reduce: NamedCall | None = None

    def weighed(self, offered: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """What the first makes of one sample: losses, mask and figures, each over its response, [R].

        Args:
            offered: the names of `hooks.TIS`; `pg_loss` is [R].

        Raises:
            PluginError: it failed, or gave tensors of other shapes, numbers that are none, or no gradient.
        """
        assert self.weigh is not None
        place, given = self.weigh.place, offered["pg_loss"]
        with user_code(place):
            result = self.weigh(offered)
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

    def reduced(self, offered: Mapping[str, Any], losses: Tensor) -> Tensor:
        """What the second makes of one sample's losses, [R] → one number.

        Args:
            offered: the names of `hooks.PG_REDUCER`.

        Raises:
            PluginError: it failed, or gave no function, or that gave no number or no gradient.
        """
        assert self.reduce is not None
        place = self.reduce.place
        with user_code(place):
            reducer = self.reduce(offered)
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


def load_policy_loss_hooks(plugin: PluginConfig) -> PolicyLossHooks:
    """The hooks of `--custom-tis-function-path` and `--custom-pg-loss-reducer-function-path`; raises as `load_hook`."""
    return PolicyLossHooks(asked_for(TIS, plugin), asked_for(PG_REDUCER, plugin))


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
