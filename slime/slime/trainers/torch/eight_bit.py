"""AdamW with 8-bit moments, from torchao, where the extra `eight-bit` is installed.

    256 numbers of a moment ─▶ 256 codes (uint8), their largest (scale, float32); what a code means (qmap, 256 float32)

What is quantised is a tensor subclass; a checkpoint holds its three parts, so that it goes on bit for bit. From
"8-bit optimizers via block-wise quantization", arXiv 2110.02861.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from slime.errors import ConfigError

_PARTS = ("codes", "scale", "qmap")
BLOCK = 256
_SMALLEST = 4096


def step(optimizer: torch.optim.Optimizer, *, is_on_cpu: bool) -> None:
    """One step. torchao compiles it, a program for every shape: on a CPU that takes longer than it ever saves."""
    with torch.compiler.set_stance("force_eager" if is_on_cpu else "default"):
        optimizer.step()


def is_quantised(parameter: Tensor) -> bool:
    """Whether a parameter's moments are; small and odd-sized ones stay in float32, which is torchao's rule."""
    return parameter.numel() >= _SMALLEST and parameter.numel() % BLOCK == 0


def parts(name: str, moment: Tensor) -> dict[str, Tensor]:
    """A moment as plain tensors: itself, or its parts as `<name>.codes` and so on."""
    if not hasattr(moment, "codes"):
        return {name: moment}
    return {f"{name}.{part}": getattr(moment, part) for part in _PARTS}


def whole(name: str, state: Mapping[str, Tensor], *, is_signed: bool) -> Tensor | None:
    """The moment whose parts were saved under `name`; None where there are none."""
    if any(f"{name}.{part}" not in state for part in _PARTS):
        return None
    from torchao.optim.subclass_8bit import OptimState8bit

    codes, scale, qmap = (state[f"{name}.{part}"].clone() for part in _PARTS)
    moment: Tensor = OptimState8bit(codes, scale, qmap, is_signed, torch.float32)
    return moment


def library() -> Any:
    """torchao's optimizers.

    Raises:
        ConfigError: torchao is not there; one line that names the extra.
    """
    try:
        import torchao.optim
    except ImportError as error:
        raise ConfigError(
            f"--optimizer adamw8bit needs torchao: pip install 'openclaw-slime[eight-bit]' ({error})"
        ) from None
    return torchao.optim
