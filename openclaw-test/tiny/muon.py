"""Muon in float32: momentum, orthogonalised, for the matrices inside a network's layers.

    gradient ─▶ Nesterov momentum ─▶ Newton–Schulz: U·S·Vᵀ ─▶ about U·Vᵀ ─▶ weights

The method is Keller Jordan's (https://kellerjordan.github.io/posts/muon), with the coefficients and the step size of
`torch.optim.Muon`. That one iterates in bfloat16, which processors without bfloat16 instructions emulate: on those it
takes a third of the tiny model's training time, and its roundings differ from one instruction set to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_NUM_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum with decoupled weight decay.

    >>> Muon([layer.weight], lr=0.015, weight_decay=0.05)

    Args:
        params: matrices; anything else raises ValueError.
        lr: the step of a matrix that is wider than tall; a taller one's is √(rows / columns) times as long.
    """

    def __init__(
        self, params: Iterable[torch.nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        matrices = list(params)
        if any(matrix.ndim != 2 for matrix in matrices):
            raise ValueError("Muon trains matrices only")
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step along each matrix's gradient; a closure is not called."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                average = state.setdefault("average", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonal(matrix.grad.lerp(average, group["momentum"]))
                rows, columns = matrix.shape
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """U·S′·Vᵀ for the matrix U·S·Vᵀ, with all of S′ between about 0.7 and 1.2; float32, shape kept."""
    a, b, c = _COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
