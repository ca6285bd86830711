"""AdamW with linear warm-up and gradient clipping; a step without a usable gradient is skipped.

A step whose gradient is not finite is skipped and counted; so is one whose gradient is zero throughout,
which AdamW would turn into weight decay and old momentum. Skipping leaves no trace in parameters or optimizer.

With `--offload-optimizer-state` the moments, and a copy of the parameters that they move, lie in CPU memory:

    gradient (GPU) ─ clip ─▶ CPU ─ AdamW on the copy ─▶ parameters (GPU)

`--optimizer adamw8bit` keeps the moments in 8 bits; see `eight_bit`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from slime.config.sections import TrainerConfig
from slime.errors import WeightsError
from slime.trainers.torch import eight_bit

log = logging.getLogger(__name__)

NO_GRADIENT = "nothing to learn: the gradient is zero"
"""Why a step is skipped that was computed right and says nothing."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one gradient.

    Attributes:
        skipped: why it was not applied; empty when it was.
    """

    grad_norm: float
    learning_rate: float
    skipped: str = ""


class Optimizer:
    """AdamW with linear warm-up and clipping by the global norm; matrices decay, vectors do not.

    Args:
        moved: called when the parameters have other values.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], config: TrainerConfig, moved: Callable[[], None] = lambda: None
    ) -> None:
        self.parameters = dict(parameters)
        self._moved = moved
        self.config = config
        self.num_steps = 0
        self.num_skipped = 0
        self._is_offloaded = offloads(self.parameters, config)
        self._stepped = self.parameters
        if self._is_offloaded:
            self._stepped = {n: p.detach().to("cpu", copy=True).requires_grad_() for n, p in self.parameters.items()}
        matrices = [p for p in self._stepped.values() if p.ndim >= 2]
        vectors = [p for p in self._stepped.values() if p.ndim < 2]
        self._is_8bit = config.optimizer == "adamw8bit"
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        settings: dict[str, Any] = {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_eps}
        self._adamw: torch.optim.Optimizer
        if self._is_8bit:
            self._adamw = eight_bit.library().AdamW8bit(groups, lr=config.lr, block_size=eight_bit.BLOCK, **settings)
        else:
            self._adamw = torch.optim.AdamW(groups, lr=config.lr, fused=True, **settings)

    def apply(self, loss: float) -> Applied:
        """Consume the gradients that have been accumulated.

        Args:
            loss: the step's loss; a step whose loss is not finite is skipped too.
        """
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = get_total_norm(gradients)
        learning_rate = self.config.lr * min(1.0, (self.num_steps + 1) / max(1, self.config.lr_warmup_steps))
        applied = Applied(float(norm), learning_rate, _why_skipped(float(norm), loss))
        if applied.skipped:
            self.num_skipped += 1
        else:
            clip_grads_with_norm_(self.parameters.values(), self.config.clip_grad, norm)
            for group in self._adamw.param_groups:
                group["lr"] = torch.tensor(learning_rate) if self._is_8bit else learning_rate
            self._step()
            self._moved()
            self.num_steps += 1
        self.discard()
        return applied

    def discard(self) -> None:
        """Forget the gradients that have been accumulated."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def _step(self) -> None:
        pairs = [(p, self._stepped[name]) for name, p in self.parameters.items()] if self._is_offloaded else []
        for parameter, copy in pairs:
            copy.grad = None if parameter.grad is None else parameter.grad.to("cpu")
        if self._is_8bit:
            eight_bit.step(self._adamw, is_on_cpu=all(p.device.type == "cpu" for p in self._stepped.values()))
        else:
            self._adamw.step()
        with torch.no_grad():
            for parameter, copy in pairs:
                parameter.copy_(copy)
                copy.grad = None

    def state(self) -> dict[str, Tensor]:
        """The moments, by `exp_avg.<parameter>` and so on, in plain tensors; empty before the first step."""
        saved: dict[str, Tensor] = {}
        for name, parameter in self._stepped.items():
            for moment in _MOMENTS if parameter in self._adamw.state else ():
                saved |= eight_bit.parts(f"{moment}.{name}", self._adamw.state[parameter][moment])
        return saved

    def restore(self, state: Mapping[str, Tensor], *, num_steps: int, num_skipped: int) -> None:
        """Go on from a state that was saved.

        Raises:
            WeightsError: the state belongs to other parameters, or to an optimizer of the other kind.
        """
        moments = {name: self._moments(name, state) for name in self._stepped} if num_steps else {}
        self._adamw.state.clear()
        if self._is_offloaded:  # the parameters have other values by now
            for name, copy in self._stepped.items():
                copy.data.copy_(self.parameters[name].data)
        for name, found in moments.items():
            self._adamw.state[self._stepped[name]] = found
        self.num_steps, self.num_skipped = num_steps, num_skipped

    def _moments(self, name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One parameter's moments from what was saved, where its optimizer wants them."""
        parameter = self._stepped[name]
        is_quantised = self._is_8bit and eight_bit.is_quantised(parameter)
        moments: dict[str, Tensor] = {}
        for moment in ("exp_avg", "exp_avg_sq"):
            key = f"{moment}.{name}"
            found = eight_bit.whole(key, state, is_signed=moment == "exp_avg") if is_quantised else state.get(key)
            if found is None or found.shape != parameter.shape:
                raise WeightsError(
                    f"the optimizer state does not fit --optimizer {self.config.optimizer}: no moments of the right "
                    f"kind and shape for {name}"
                )
            moments[moment] = found.to(parameter.device, copy=True)
        counts_on_cpu = self._is_8bit or parameter.device.type == "cpu"
        step = state[f"step.{name}"].to("cpu" if counts_on_cpu else parameter.device, copy=True)
        return {"step": step, **moments}


def offloads(parameters: Mapping[str, Tensor], config: TrainerConfig) -> bool:
    """Whether to step in CPU memory: as asked for, where the parameters are elsewhere."""
    are_elsewhere = any(parameter.device.type != "cpu" for parameter in parameters.values())
    if config.offload_optimizer_state and not are_elsewhere:
        log.info("offload_optimizer_state changes nothing: the parameters are in CPU memory too")
    return config.offload_optimizer_state and are_elsewhere


def _why_skipped(norm: float, loss: float) -> str:
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm):
        return f"the gradient's norm is {norm}"
    return NO_GRADIENT if norm == 0 else ""
