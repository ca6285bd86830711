"""Loss plug-ins: named tensors in, one number with a gradient and its metrics out.

    values["policy_logprobs"], …  ─▶  compute_loss(policy_logprobs, advantages, config)  ─▶  (loss, {"kl": 0.01})

Published styles run unchanged: `compute_loss(policy_logits, reference_logits, rewards, advantages, config)`,
`compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio)`, `compute_hybrid_loss(…)`, which
calls a global `compute_gae`, and slime's `(args, batch, logits, sum_of_sample_mean)`.
"""

from __future__ import annotations

import contextvars
import dataclasses
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.returns import advantages_of_tokens, compute_gae
from slime.errors import PluginError
from slime.fields import fields
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS, matched, same
from slime.plugins.loading import load_object

_VALUES: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("values of the loss under way")
_OF_SAMPLES = frozenset(("batch", "logits", "sample_index", "turn_index", "reward", "rewards"))


@dataclass(frozen=True)
class LossHook:
    """A loss of the user's, ready to be called.

    Attributes:
        call: the function and what it asks for.
    """

    call: NamedCall

    @property
    def asks_for(self) -> frozenset[str]:
        """The names it reads; what it does not ask for need not be computed."""
        return self.call.asks_for

    @property
    def is_sum_over_samples(self) -> bool:
        """Whether it reduces by `sum_of_sample_mean`, itself or in `policy_objective`; else it gives a mean over the
        micro-batch's trainable tokens."""
        return bool(self.asks_for & {"sum_of_sample_mean", "policy_objective"})

    @property
    def sees_samples(self) -> bool:
        """Whether it reads which tokens are of one sample, as they were collected; else a token's values are all."""
        return not self.is_sum_over_samples or bool(self.asks_for & _OF_SAMPLES)

    @property
    def looks_ahead(self) -> bool:
        """Whether its file calls the `compute_gae` that it is provided with, which needs `later_rewards`."""
        module = sys.modules.get(getattr(self.call.function, "__module__", ""))
        if getattr(module, "compute_gae", None) is not _published_compute_gae:
            return False
        try:
            return module is None or "compute_gae" in inspect.getsource(module)
        except OSError:
            return True

    @property
    def divides_by_its_mask(self) -> bool:
        """Whether it is a mean over the tokens that a teacher spoke of, as published: without any it is 0 / 0."""
        return "advantage_mask" in self.asks_for and not self.is_sum_over_samples

    def __call__(self, values: Mapping[str, Any]) -> tuple[Tensor, dict[str, float]]:
        """The loss of one micro-batch and its metrics.

        Args:
            values: the names of `hooks.LOSS` and every registered field; read one by one, so it may be lazy.

        Raises:
            PluginError: what came out is no loss, or it does not depend on the policy.
        """
        token = _VALUES.set(values)
        try:
            result = self.call(values)
        finally:
            _VALUES.reset(token)
        return self._checked(result)

    def _checked(self, result: Any) -> tuple[Tensor, dict[str, float]]:
        place = self.call.place
        loss, metrics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(loss, Tensor):
            raise PluginError(
                f"{place} gave {type(loss).__name__}; a loss is a tensor of one number, or (loss, metrics)"
            )
        if loss.numel() != 1:
            raise PluginError(f"{place} gave a tensor of shape {tuple(loss.shape)}; reduce it to one number")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise PluginError(f"{place} gave a loss without a gradient; it does not depend on policy_logprobs")
        if not isinstance(metrics, Mapping):
            raise PluginError(f"{place} gave metrics of type {type(metrics).__name__}; they are a mapping of numbers")
        return loss.reshape(()), {str(name): _number(place, name, value) for name, value in metrics.items()}


def load_loss(path: str) -> LossHook:
    """The loss at `path`, e.g. `my-method/custom_loss.py` or `my_method.losses:clipped`.

    Raises:
        PluginError: no such file or name, or a parameter that is not on offer.
    """
    provided = {"compute_gae": _published_compute_gae}
    found = load_object(path, LOSS.default_names, flag=LOSS.flag, provided=provided)
    names = {**same(*(field.name for field in fields())), **LOSS.names}  # the file may have registered some
    return LossHook(_as_published(matched(dataclasses.replace(LOSS, names=names), found, path)))


def _as_published(call: NamedCall) -> NamedCall:
    """Have a published distillation loss, which differentiates what it makes of teacher and student, compare like with
    like: the teacher at the student's temperature, and the student itself where no teacher spoke."""
    if "student_logprobs" not in call.keyword or "teacher_logprobs" not in call.keyword:
        return call
    return dataclasses.replace(call, keyword={**call.keyword, "teacher_logprobs": "tempered_teacher_logprobs"})


def _number(place: str, name: Any, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    if isinstance(value, int | float):
        return float(value)
    raise PluginError(f"{place} gave metric {name!r} of type {type(value).__name__}; a metric is one number")


def _published_compute_gae(rewards: Any, values: Any = None, gamma: float = 0.99, lambda_: float = 0.95) -> Tensor:
    """The global that published loss files call. Inside a loss `rewards` stand by token, and a token's time is its
    turn's: the turns after it count, which may be other samples, on other ranks."""
    rewards = torch.as_tensor(rewards, dtype=torch.float32)
    named = _VALUES.get(None)
    if values is not None or named is None or rewards.shape != named["rewards"].shape:
        return compute_gae(rewards, values, gamma, lambda_)
    later = named["later_rewards"]
    if later.any() and not torch.equal(rewards, named["rewards"].to(rewards)):
        raise PluginError(
            "compute_gae was given other rewards than the loss, and what comes later in a session is in other samples: "
            "give it the rewards as they are, and scale what comes out"
        )
    return advantages_of_tokens(rewards, later, gamma, lambda_)
