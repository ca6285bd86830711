"""From slime's samples to ours: prompt and response become one sequence with streams.

    tokens  = [ prompt ……… | response ……………… ]
    streams   mask 0         loss_mask, rollout_log_probs, versions   ─▶ slime.types.Sample

What cannot be trained says why: a reply without a score, without log-probs, or of the wrong length is left out, and
nothing is filled in for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slime.compat.sample import Group, Sample, flatten
from slime.data.fitness import why_no_logprobs, why_no_reward
from slime.engines.dialect import version_from_wire
from slime.errors import PluginError
from slime.fields import fields
from slime.types import Sample as TrainSample
from slime.types import SampleGroup


def why_not_trained(sample: Sample) -> str:
    """Why a sample is left out; empty if it is not.

    Raises:
        PluginError: it contradicts itself, which is a mistake in the code that made it.
    """
    _check_lengths(sample)
    if sample.remove_sample:
        return "removed"
    if sample.status in (Sample.Status.ABORTED, Sample.Status.FAILED):
        return str(sample.status.value)
    if sample.reward is None:
        return "unjudged"
    if not sample.effective_response_length:
        return "empty"
    if sample.rollout_log_probs is None:
        return "no log-probs"
    return why_no_reward(sample.reward) or why_no_logprobs(_trained_logprobs(sample))


def to_group(
    group: Group, *, group_id: str, temperature: float, version: int, advantages: Mapping[int, float]
) -> SampleGroup | None:
    """A group of samples to train, or None where none of them can be.

    Args:
        version: the policy version when the group was begun, for tokens whose own is not known.
        advantages: by `id(sample)`, those that a reward post-process made; the others are the trainer's to make.
    """
    samples: list[TrainSample] = []
    for number, entry in enumerate(group):
        for sample in flatten([entry]):
            if not why_not_trained(sample):
                member = number if sample.rollout_id is None else sample.rollout_id
                samples.append(
                    to_train_sample(
                        sample,
                        trajectory_id=f"{group_id}-{member}",
                        temperature=temperature,
                        version=version,
                        advantage=advantages.get(id(sample)),
                    )
                )
    return SampleGroup(group_id, tuple(samples)) if samples else None


def to_train_sample(
    sample: Sample, *, trajectory_id: str, temperature: float, version: int, advantage: float | None = None
) -> TrainSample:
    """One sample as the trainer takes it.

    Raises:
        PluginError: its parts do not fit each other, or it brings a field that is not registered, or log-probs that
            are none.
    """
    _check_lengths(sample)
    if why := why_no_logprobs(_trained_logprobs(sample)):
        raise PluginError(why)
    before = len(sample.tokens) - sample.response_length
    reward = _number(sample.reward)
    mask = [1] * sample.response_length if sample.loss_mask is None else [int(bool(m)) for m in sample.loss_mask]
    streams: dict[str, Sequence[Any]] = {
        "loss_mask": mask,
        "rollout_logprobs": sample.rollout_log_probs or [],
        "policy_versions": sample.policy_versions or [_oldest(sample, version)] * sample.response_length,
        "rewards": [reward] * sample.response_length,
    }
    if sample.teacher_log_probs is not None:
        streams["teacher_logprobs"] = sample.teacher_log_probs
        streams["has_teacher"] = [1] * sample.response_length
    if advantage is not None:
        streams["advantages"] = [advantage] * sample.response_length
    values = {"reward": reward, "temperature": temperature}
    declared = {field.name: field for field in fields()}
    for name, value in (sample.train_metadata or {}).items():
        if name not in declared:
            raise PluginError(f"train_metadata has {name!r}, which is no field: declare it with register_field")
        if declared[name].level == "sample":
            values[name] = _number(value)
        else:
            streams[name] = value
    return TrainSample(
        token_ids=tuple(sample.tokens),
        streams={
            name: (*[declared[name].filler] * before, *_of_response(name, stream, sample))
            for name, stream in streams.items()
        },
        values=values,
        turn_ids=(),
        trajectory_id=trajectory_id,
        source=str(sample.metadata.get("source", "")),
    )


def _trained_logprobs(sample: Sample) -> list[float]:
    mask = sample.loss_mask or [1] * sample.response_length
    return [value for value, flag in zip(sample.rollout_log_probs or (), mask, strict=False) if flag]


def _of_response(name: str, stream: Sequence[Any], sample: Sample) -> Sequence[Any]:
    if len(stream) != sample.response_length:
        raise PluginError(f"{name} has {len(stream)} entries for a response of {sample.response_length} tokens")
    return stream


def _check_lengths(sample: Sample) -> None:
    if not 0 <= sample.response_length <= max(len(sample.tokens) - 1, 0):
        raise PluginError(
            f"a sample has {len(sample.tokens)} tokens and a response of {sample.response_length}: tokens are those of "
            "the prompt, at least one, and of the response"
        )
    for name in ("loss_mask", "rollout_log_probs", "policy_versions", "teacher_log_probs"):
        stream = getattr(sample, name)
        if stream is not None and len(stream) != sample.response_length:
            raise PluginError(f"{name} has {len(stream)} entries for a response of {sample.response_length} tokens")


def _oldest(sample: Sample, version: int) -> int:
    """The oldest version that can have sampled it: an engine names the weights that it ended with."""
    return min([version, *(version_from_wire(name) for name in sample.weight_versions)])


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise PluginError(f"a reward is one number, not {type(value).__name__}") from None
    if not math.isfinite(number):
        raise PluginError(f"a reward must be finite, not {number}")
    return number
