"""LoRA layers in a loaded model, put in by PEFT.

    add_lora(model, settings) ─▶ frozen linear layers, each with A (random) and B (zero) beside it: W x + α/r · B A x
    LoraLayers.off()          ─▶ W x alone: the model as it was at the start, which is the reference

B is zero at first, so the model with a new adapter is the model without one, bit for bit. A is drawn from the seed and
the module's name by a generator of its own: the same on every rank and device, for every user, whatever else is drawn.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slime.config.sections import ALL_LINEAR, LoraConfig
from slime.errors import ConfigError, WeightsError
from slime.weights.adapters import Adapter, LoraShape
from slime.weights.models import require_shapes

_NAME = "default"  # of the one adapter that PEFT knows of


class LoraLayers:
    """The adapter in a model.

    Attributes:
        shape: what an adapter must have to be loaded here.
        parameters: what is trained, in float32, by `<module>.lora_A` and `<module>.lora_B`.
    """

    def __init__(self, model: nn.Module, shape: LoraShape, seed: int) -> None:
        self.shape = shape
        self._seed = seed
        self._layers: dict[str, Any] = {name: m for name, m in model.named_modules() if hasattr(m, "lora_A")}
        self.parameters: dict[str, nn.Parameter] = {
            f"{module}.lora_{letter}": getattr(layer, f"lora_{letter}")[_NAME].weight
            for module, layer in self._layers.items()
            for letter in "AB"
        }
        for parameter in self.parameters.values():
            parameter.data = parameter.data.float()
        self.reset()
        self._drop(True)

    def reset(self) -> None:
        """Begin anew: B zero, A as it was drawn first (Kaiming's uniform, as in PEFT)."""
        for name, parameter in self.parameters.items():
            if name.endswith(".lora_B"):
                parameter.data.zero_()
                continue
            generator = torch.Generator().manual_seed(_hashed(self._seed, name))
            drawn = torch.empty(parameter.shape)
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            parameter.data.copy_(drawn)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """The model without its adapter; for what needs no gradient."""
        for layer in self._layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer.enable_adapters(True)

    @contextlib.contextmanager
    def without_dropout(self) -> Iterator[None]:
        """The adapter as engines apply it; for what needs no gradient."""
        self._drop(False)
        try:
            yield
        finally:
            self._drop(True)

    def _drop(self, mode: bool) -> None:
        """Whether dropout drops, in the adapter and nowhere else."""
        for layer in self._layers.values():
            layer.lora_dropout.train(mode)

    def adapter(self) -> Adapter:
        """The adapter as it is now, sharing memory with the model."""
        pairs = {m: (self.parameters[f"{m}.lora_A"].data, self.parameters[f"{m}.lora_B"].data) for m in self._layers}
        return Adapter(self.shape, pairs)

    def load(self, adapter: Adapter, place: Path) -> None:
        """Take over an adapter of the same shape, in place.

        Raises:
            WeightsError: it is of another shape, or for other modules. Nothing has changed then.
        """
        if adapter.shape != self.shape:
            raise WeightsError(f"{place}: trained with {_words(adapter.shape)}, and this run has {_words(self.shape)}")
        require_shapes(place, self.parameters, adapter.halves)
        for name, half in adapter.halves.items():
            self.parameters[name].data.copy_(half)


def add_lora(model: Any, settings: LoraConfig, seed: int) -> LoraLayers:
    """Put a new adapter into a model, in place; of the model only the adapter is trainable afterwards.

    Raises:
        ConfigError: no linear layer has a name that was asked for, or PEFT is not installed.
    """
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise ConfigError(f"--use-lora needs PEFT: pip install 'openclaw-slime[lora]' ({error})") from None
    targets = _targets(model, settings.lora_target_modules)
    model.requires_grad_(False)
    config = PeftConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]  # PEFT only divides it by r
        lora_dropout=settings.lora_dropout,
        target_modules=list(targets),
    )
    inject_adapter_in_model(config, model, adapter_name=_NAME)
    return LoraLayers(model, LoraShape(settings.lora_rank, settings.lora_alpha, targets), seed)


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Make what dropout drops a function of step and rank, so that a resumed run drops the same."""
    torch.manual_seed(_hashed(seed, step, rank))


def _hashed(*parts: int | str) -> int:
    return int.from_bytes(hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=7).digest())


def _targets(model: Any, written: str) -> tuple[str, ...]:
    """Last parts of the names of the layers to adapt, sorted: those written, or all linear ones but the output's."""
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head
    }
    if written == ALL_LINEAR:
        return tuple(sorted(linear))
    wanted = tuple(sorted({name for name in re.split(r"[,\s]+", written) if name}))
    unknown = [name for name in wanted if name not in linear]
    if unknown or not wanted:
        name = unknown[0] if unknown else ""
        raise ConfigError(
            f"--lora-target-modules {written}: no linear layer of this model is called {name!r}; "
            f"it has {', '.join(sorted(linear))}"
        )
    return wanted


def _words(shape: LoraShape) -> str:
    return (
        f"--lora-rank {shape.rank} --lora-alpha {shape.alpha:g} --lora-target-modules {','.join(shape.target_modules)}"
    )
