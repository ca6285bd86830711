"""Shortcuts through transformers' model code. They change what a step costs, not what it computes.

A small model spends its steps between the matrix products, and a large one on a GPU launching kernels: a norm made of
six operations, or a list of layers rebuilt at every forward, is worth more there than it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm


def take_shortcuts(model: nn.Module) -> None:
    """Change a loaded model in place."""
    for module in list(model.modules()):
        if type(module) is nn.ModuleList:
            module.__class__ = _WholeList
        elif type(module).__name__.endswith("RMSNorm") and _is_plain_rms_norm(module):
            module.forward = partial(_fused_norm, module)


class _WholeList(nn.ModuleList):
    """A list of layers of which a slice that takes them all is the list itself, not a new module."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        return super().__getitem__(index)


def _fused_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _is_plain_rms_norm(norm: Any) -> bool:
    """Whether a norm class of the model's is the textbook's: weight · x / √(mean x² + ε)."""
    if not isinstance(getattr(norm, "variance_epsilon", None), float) or norm.weight.dim() != 1:
        return False
    weight: torch.Tensor = norm.weight
    original: Callable[[torch.Tensor], torch.Tensor] = norm.forward
    hidden = torch.linspace(-2.0, 3.0, 4 * weight.shape[0], device=weight.device, dtype=weight.dtype)
    hidden = hidden.view(1, 4, -1)
    with torch.no_grad():
        return torch.allclose(
            _fused_norm(norm, hidden), original(hidden), rtol=1e-2 if weight.dtype.itemsize < 4 else 1e-6
        )
