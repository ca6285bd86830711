"""Between slime's samples and ours: a prompt and a response there, one sequence with streams here.

    tokens  = [ prompt ……… | response ……………… ]
    streams   mask 0         loss_mask, rollout_log_probs, versions   ─▶ slime.types.Sample
    slime.types.Turn ─ sample_of_turn ─▶ the `sample` of a live reward

What cannot be trained says why: a reply without a score, without log-probs, or of the wrong length is left out, and
nothing is filled in for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slime.compat.sample import Group, Sample, flatten
from slime.data.fitness import why_useless
from slime.engines.dialect.versions import version_from_wire
from slime.errors import PluginError
from slime.fields import field, fields
from slime.plugins.rewards import asked, text_of_all
from slime.types import Sample as TrainSample
from slime.types import SampleGroup, Turn


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
    return why_useless("reward", (sample.reward,)) or why_useless("rollout_logprobs", _trained_logprobs(sample))


def to_group(group: Group, *, group_id: str, temperature: float, version: int) -> SampleGroup | None:
    """A group of samples to train, or None where none of them can be.

    Args:
        version: the policy version when the group was begun, for tokens whose own is not known.
    """
    samples = tuple(
        to_train_sample(
            sample,
            trajectory_id=f"{group_id}-{number if sample.rollout_id is None else sample.rollout_id}",
            temperature=temperature,
            version=version,
        )
        for number, entry in enumerate(group)
        for sample in flatten([entry])
        if not why_not_trained(sample)
    )
    return SampleGroup(group_id, samples) if samples else None


def to_train_sample(sample: Sample, *, trajectory_id: str, temperature: float, version: int) -> TrainSample:
    """One sample as the trainer takes it.

    Raises:
        PluginError: its parts do not fit each other, or it brings a field that is not registered, or log-probs that
            are none.
    """
    _check_lengths(sample)
    if why := why_useless("rollout_logprobs", _trained_logprobs(sample)):
        raise PluginError(why)
    length, reward = sample.response_length, _number(sample.reward)
    values = {"reward": reward, "temperature": temperature}
    streams: dict[str, Sequence[Any]] = {
        "loss_mask": [int(bool(flag)) for flag in _mask(sample)],
        "rollout_logprobs": sample.rollout_log_probs or [],
        "policy_versions": sample.policy_versions or [_oldest(sample, version)] * length,
        "rewards": [reward] * length,
    }
    if sample.teacher_log_probs is not None:
        streams |= {"teacher_logprobs": sample.teacher_log_probs, "has_teacher": [1] * length}
    for name, value in (sample.train_metadata or {}).items():
        if name not in {declared.name for declared in fields()}:
            raise PluginError(f"train_metadata has {name!r}, which is no field: declare it with register_field")
        if field(name).level == "sample":
            values[name] = _number(value)
        else:
            streams[name] = value
    for name, stream in streams.items():
        _check_length(name, stream, length)
    before = len(sample.tokens) - length
    return TrainSample(
        token_ids=tuple(sample.tokens),
        streams={name: (*[field(name).filler] * before, *stream) for name, stream in streams.items()},
        values=values,
        turn_ids=(),
        trajectory_id=trajectory_id,
        source=str(sample.metadata.get("source", "")),
    )


def sample_of_turn(turn: Turn) -> Sample:
    """A turn of a conversation as slime's sample."""
    is_cut = turn.completion.finish_reason == "length"
    further = {"source": turn.source, "next_state": text_of_all(turn.next_state or ()), "messages": list(turn.messages)}
    return Sample(
        prompt=asked(turn.messages),
        response=turn.completion.text,
        tokens=[*turn.prompt_ids, *turn.completion.token_ids],
        response_length=len(turn.completion.token_ids),
        rollout_log_probs=list(turn.completion.logprobs),
        session_id=turn.session_id,
        metadata={**turn.details, **further},
        status=Sample.Status.TRUNCATED if is_cut else Sample.Status.COMPLETED,
    )


def _mask(sample: Sample) -> Sequence[Any]:
    return [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask


def _trained_logprobs(sample: Sample) -> list[float]:
    return [value for value, flag in zip(sample.rollout_log_probs or (), _mask(sample), strict=False) if flag]


def _check_lengths(sample: Sample) -> None:
    if not 0 <= sample.response_length <= max(len(sample.tokens) - 1, 0):
        raise PluginError(
            f"a sample has {len(sample.tokens)} tokens and a response of {sample.response_length}: tokens are those of "
            "the prompt, at least one, and of the response"
        )
    for name in ("loss_mask", "rollout_log_probs", "policy_versions", "teacher_log_probs"):
        if (stream := getattr(sample, name)) is not None:
            _check_length(name, stream, sample.response_length)


def _check_length(name: str, stream: Sequence[Any], length: int) -> None:
    if len(stream) != length:
        raise PluginError(f"{name} has {len(stream)} entries for a response of {length} tokens")


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
