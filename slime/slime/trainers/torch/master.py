"""Master weights: float32 beside a model that computes in bfloat16, for the optimizer and for checkpoints.

    gradient of a model weight (bfloat16) ─ when it is whole ─▶ added to its master's (float32), and let go
    optimizer moves the masters ─ refresh ─▶ model weights: the masters rounded, which is what engines load

So trainer and engine run the same numbers through the same types, residual stream, norms and embeddings included;
matrix products alone in bfloat16 (autocast over float32 weights) are not what an engine computes. Steps smaller than
a bfloat16 can show add up in the masters. A number that is trained takes 2 bytes more than in float32, and its
gradient is summed over micro-batches in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class MasterWeights:
    """The masters of a model's weights.

    Args:
        model: in the type that it computes in.
        exact: its weights by name, as they were stored.

    Attributes:
        parameters: the masters by the names that their weights have in the model.
    """

    def __init__(self, model: nn.Module, exact: Mapping[str, Tensor]) -> None:
        self._weights = dict(model.named_parameters())
        self.parameters = {
            name: nn.Parameter(exact[name].detach().to(weight.device, torch.float32, copy=True))
            for name, weight in self._weights.items()
        }
        for name, weight in self._weights.items():
            whole: Any = weight.register_post_accumulate_grad_hook  # torch has no types for it
            whole(partial(_hand_over, self.parameters[name]))

    @torch.no_grad()
    def refresh(self) -> None:
        """Let the model compute with what the masters are now."""
        for name, weight in self._weights.items():
            weight.copy_(self.parameters[name])

    @torch.no_grad()
    def load(self, exact: Mapping[str, Tensor]) -> None:
        """Take other values, in place; the model's follow."""
        for name, master in self.parameters.items():
            master.copy_(exact[name])
        self.refresh()

    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's state with masters in the place of its weights; tied weights share one."""
        by_weight = {id(weight): self.parameters[name].data for name, weight in self._weights.items()}
        exact = {name: by_weight[id(weight)] for name, weight in model.named_parameters(remove_duplicate=False)}
        return {**model.state_dict(), **exact}


def _hand_over(master: Tensor, weight: Tensor) -> None:
    """Add a weight's gradient to its master's."""
    gradient = weight.grad
    assert gradient is not None  # the hook runs when it is there
    if master.grad is None:
        master.grad = gradient.to(torch.float32, copy=True)
    else:
        master.grad += gradient
    weight.grad = None
