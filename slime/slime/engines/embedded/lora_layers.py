"""Adapters beside the base: low-rank matrices that some tokens of a step pass through and others do not.

    adapter directory ─ read, place on the device ─▶ LiveAdapter ─ attach ─▶ linear layers know how to ask for it
    a step: tokens by adapter ─▶ groups ─▶ every adapted layer: W x, plus for each group B (A x[its tokens])

A layer is changed once, when the first adapter that adapts it arrives; with no adapter in a step it is one test slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from slime.errors import WeightsError
from slime.weights.adapters import Adapter

Where = slice | Tensor | None
"""Tokens of a step: a range, their indices, or all of them."""


@dataclass(frozen=True, eq=False)
class LiveAdapter:
    """An adapter that can be served.

    Attributes:
        version: of the tokens it makes.
        key: no other adapter of this process ever has it, whatever its name: what caches are told apart by.
        pairs: (A, α/r · B) by module, on the model's device and in its type.
    """

    version: int
    key: int
    pairs: Mapping[str, tuple[Tensor, Tensor]]


Spans = list[tuple[int, int]]
"""Tokens of a step that one adapter makes: from, up to, ascending."""


class AdaptedLayers:
    """The linear layers of a model, as far as adapters adapt them. On the thread that computes, but for `stage`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._linear: dict[str, nn.Linear] = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and "lm_head" not in name and ".experts." not in name
        }
        self._changed: set[str] = set()
        self.groups: tuple[tuple[LiveAdapter, Where], ...] = ()

    def stage(self, adapter: Adapter) -> dict[str, tuple[Tensor, Tensor]]:
        """Place an adapter beside the model; a `WeightsError` where it does not fit. May run on any thread."""
        staged = {}
        for name, (a, b) in adapter.pairs.items():
            layer = self._linear.get(name)
            if layer is None or (b.shape[0], a.shape[1]) != tuple(layer.weight.shape):
                raise WeightsError(f"the adapter does not fit the model: it has no such linear layer {name}")
            staged[name] = a.to(layer.weight), (adapter.shape.scale * b.float()).to(layer.weight)
        return staged

    def attach(self, names: Iterable[str]) -> None:
        """Have these layers ask for adapters from now on."""
        for name in names:
            if name not in self._changed:
                self._changed.add(name)
                layer: Any = self._linear[name]
                layer.forward = partial(self._adapted, name, layer)

    def _adapted(self, name: str, layer: nn.Linear, inputs: Tensor) -> Tensor:
        outputs = linear(inputs, layer.weight, layer.bias)
        for adapter, where in self.groups:
            pair = adapter.pairs.get(name)
            if pair is None:
                continue
            a, b = pair
            if where is None:
                outputs += linear(linear(inputs, a), b)
            elif isinstance(where, slice):
                outputs[0, where] += linear(linear(inputs[0, where], a), b)
            else:
                outputs[0].index_add_(0, where, linear(linear(inputs[0, where], a), b))
        return outputs


def groups_of(
    adapted: Mapping[LiveAdapter, Spans], num_tokens: int, device: torch.device
) -> tuple[tuple[LiveAdapter, Where], ...]:
    """Each adapter of a step with all its tokens."""
    return tuple((adapter, _where(spans, num_tokens, device)) for adapter, spans in adapted.items())


def _where(spans: Spans, num_tokens: int, device: torch.device) -> Where:
    if spans == [(0, num_tokens)]:
        return None
    if len(spans) == 1:
        return slice(*spans[0])
    return torch.tensor([token for first, end in spans for token in range(first, end)], device=device)
