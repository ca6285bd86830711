"""The field registry: every stream of a sample, declared once.

Store, transport, packing, sharding and the loss derive what they do with a stream from its declaration
here, so a plug-in adds one with a single call and nothing in the core changes:

    register_field("teacher_logprobs", level="token", dtype="float32", fill=0.0)

A sample that lacks a field gets `fill` in its place; it is never dropped for it, and it never removes
the field from the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from slime.errors import PluginError, nearest

Level = Literal["sample", "token", "token_k"]
Dtype = Literal["float32", "int64", "bool"]


@dataclass(frozen=True, slots=True)
class Field:
    """One declared stream.

    Attributes:
        level: `sample` = one value a sample; `token` = one a token; `token_k` = a row of k a token.
        dtype: of the tensor that the loss sees.
        fill: the value for samples (or tokens) that lack the field.
        meaning: one line, for the generated documentation.
    """

    name: str
    level: Level
    dtype: Dtype
    fill: float
    meaning: str = ""

    @property
    def filler(self) -> float | int | tuple[()]:
        """What stands at a token that lacks the field: `fill` in the field's type, or an empty row."""
        if self.level == "token_k":
            return ()
        return self.fill if self.dtype == "float32" else int(self.fill)


_FIELDS: dict[str, Field] = {}


def register_field(name: str, *, level: Level, dtype: Dtype = "float32", fill: float = 0.0, meaning: str = "") -> Field:
    """Declare a stream; declaring it again in the same words is harmless, in other words a `PluginError`."""
    field = Field(name, level, dtype, fill, meaning)
    known = _FIELDS.get(name)
    if known is not None and (known.level, known.dtype, known.fill) != (level, dtype, fill):
        raise PluginError(f"field {name!r} is already declared as {known.level} {known.dtype} with fill {known.fill}")
    _FIELDS[name] = known or field
    return _FIELDS[name]


def field(name: str) -> Field:
    """The declaration of a stream; a `PluginError` that names the nearest one if there is none."""
    if name not in _FIELDS:
        raise PluginError(f"no field {name!r} is registered{nearest(name, _FIELDS)}")
    return _FIELDS[name]


def fields(level: Level | None = None) -> tuple[Field, ...]:
    """All declared streams, of one level if asked."""
    return tuple(f for f in _FIELDS.values() if level is None or f.level == level)


register_field("loss_mask", level="token", dtype="bool", fill=0, meaning="1 where the token trains")
register_field("rollout_logprobs", level="token", meaning="log-prob when it was sampled, as the engine gave it")
register_field("policy_versions", level="token", dtype="int64", fill=-1, meaning="weights version that sampled it")
register_field("teacher_logprobs", level="token", meaning="log-prob under the hint-augmented prompt, at temperature 1")
register_field("has_teacher", level="token", dtype="bool", fill=0, meaning="1 where teacher_logprobs were measured")
register_field("has_reward", level="token", dtype="bool", fill=1, meaning="0 where its turn has a hint and no score")
register_field("turn_index", level="token", dtype="int64", fill=-1, meaning="which of the sample's turns sampled it")
register_field("rewards", level="token", meaning="score of its turn; the sample's reward where turns have none")
register_field("advantages", level="token", meaning="made from rewards by the trainer, unless a sample brings its own")
register_field("returns", level="token", meaning="advantage plus value before the turn: what a critic learns")
register_field(
    "old_values", level="token", meaning="the critic's value of what came before the token, at the start of the batch"
)
register_field(
    "proximal_logprobs", level="token", fill=math.nan, meaning="log-prob at the start of the batch, of several steps"
)
register_field(
    "proximal_at_one",
    level="token",
    fill=math.nan,
    meaning="the same at temperature 1, where a teacher is compared with tokens that were sampled at another",
)
register_field("reference_kl", level="token", meaning="KL to the reference at the start of the batch, for the reward")
register_field(
    "later_rewards",
    level="token_k",
    meaning="what the turns after the token's earned, the next one first; where the loss calls `compute_gae`",
)
register_field("outcome", level="sample", meaning="what the whole trajectory came to; step_wise adds it to each step")
register_field("reward", level="sample", meaning="score of the verdict")
register_field(
    "temperature", level="sample", fill=1.0, meaning="sampling temperature; the trainer divides logits by it"
)
