"""Sample validation: a sample that no update can use is left out with a reason, and costs no other.

    Batch ─▶ why_unfit, sample by sample ─▶ the fit ones ─▶ Trainer
                       │
                       └─▶ {"t41": "rollout_logprobs: nan is not finite"} ─▶ the report, the store

Samples come from engines, hooks and rollouts of the user's. One number that is none would make a loss, and with it a
whole batch, unusable; one reward of 1e300 would be all that an update is about. Groups and baselines are those of what
is left.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slime.fields import field
from slime.types import LARGEST_REWARD, Batch, Sample

SMALLEST_LOGPROB = -1000.0
"""No engine samples a token of a log-prob below this."""

_ROUNDING = 1e-4
"""A log-prob may be above zero by this much."""

_COLDEST, _HOTTEST = 1e-3, 1e3


@dataclass(frozen=True, slots=True)
class Sorted:
    """A batch less what cannot be trained.

    Attributes:
        left_out: by turn, why; turns that the rest of the batch trains all the same are not among them.
        reasons: how many samples were left out for what.
    """

    fit: Batch
    left_out: Mapping[str, str]
    reasons: Mapping[str, int]


def sort_out(batch: Batch, vocab_size: int) -> Sorted:
    """Leave out the samples that are not fit to be trained, and groups that have no others.

    Args:
        vocab_size: of the policy.
    """
    groups = []
    unfit: list[tuple[Sample, str]] = []
    for group in batch.groups:
        found = [(sample, why_unfit(sample, vocab_size)) for sample in group.samples]
        unfit += [(sample, why) for sample, why in found if why]
        if kept := tuple(sample for sample, why in found if not why):
            groups.append(dataclasses.replace(group, samples=kept))
    fit = Batch(tuple(groups))
    trained = set(fit.turn_ids)
    left_out = {turn_id: why for sample, why in unfit for turn_id in sample.turn_ids if turn_id not in trained}
    return Sorted(fit, left_out, Counter(why for _, why in unfit))


def why_unfit(sample: Sample, vocab_size: int) -> str:
    """Why a sample cannot be trained, e.g. `reward: 1e+300 is beyond ±1e+06`; empty if it can."""
    mask = sample.streams["loss_mask"]
    trained = [index for index, flag in enumerate(mask) if flag]
    if not trained:
        return "none of its tokens trains"
    if not all(0 <= token_id < vocab_size for token_id in sample.token_ids):
        return f"token_ids: not all of them are below {vocab_size}, the policy's number of ids"
    for name, value in sample.values.items():
        if why := why_useless(name, (value,)):
            return why
    for name, stream in sample.streams.items():
        if field(name).level != "token" or field(name).dtype != "float32":
            continue
        measured = trained
        if name == "teacher_logprobs" and (has_teacher := sample.streams.get("has_teacher")) is not None:
            measured = [index for index in trained if has_teacher[index]]
        if why := why_useless(name, (stream[index] for index in measured)):
            return why
    return ""


def why_useless(name: str, values: Iterable[Any]) -> str:
    """The first of a field's values that nothing can be learned from, and why; empty if there is none."""
    for value in values:
        try:
            number = float(value)
        except (TypeError, ValueError):
            return f"{name}: {type(value).__name__} is not a number"
        if not math.isfinite(number):
            return f"{name}: {number} is not finite"
        if name.endswith("_logprobs"):
            if not SMALLEST_LOGPROB <= number <= _ROUNDING:
                return f"{name}: {number:g} is no log-prob of a sampled token: those are in {SMALLEST_LOGPROB:g} … 0"
        elif name == "temperature":
            if not _COLDEST <= number <= _HOTTEST:
                return f"{name}: {number:g} is outside {_COLDEST:g} … {_HOTTEST:g}"
        elif abs(number) > LARGEST_REWARD:
            return f"{name}: {number:g} is beyond ±{LARGEST_REWARD:g}"
    return ""
