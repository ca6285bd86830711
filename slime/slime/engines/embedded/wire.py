"""The dialect on the wire: /generate bodies to sequences, sequences to answers.

Field names, defaults, error texts and the odd corners (the leading null of prompt log-probs, `ignore_eos` that also
ignores stop ids, streams that repeat everything said so far) are those of SGLang 0.5.23.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime.engines.embedded.sequence import DecodingParams, LogprobsWanted, Sequence, TopRow
from slime.errors import EngineRejected, nearest

_FIELDS = {
    "rid", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "token_ids_logprob", "stream",
}  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1), "json_schema": (None, ""), "regex": (None, ""), "ebnf": (None, ""), "structural_tag": (None, ""),
    "stop_regex": (None, "", []), "logit_bias": (None, {}), "spaces_between_special_tokens": (None, True),
    "beam_width": (None, 1), "custom_params": (None, {}), "stream_interval": (None, 1), "watermark": (None,),
}  # fmt: skip
"""Sampling parameters of the dialect that this engine does not have, and the values at which they ask for nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request is checked against."""

    vocab_size: int
    context_len: int


def parse_generate(body: Any, limits: Limits) -> Sequence:
    """A /generate body as a sequence; `EngineRejected` with SGLang's words where there is one of its own."""
    if not isinstance(body, dict):
        raise EngineRejected("the body must be a JSON object")
    for name in body:
        if name not in _FIELDS and body[name] is not None:
            raise EngineRejected(f"unknown field `{name}`{nearest(name, _FIELDS)}")
    prompt_ids = body.get("input_ids")
    if prompt_ids is None:
        raise EngineRejected("input_ids should be provided.")
    if not isinstance(prompt_ids, list) or not all(type(token_id) is int for token_id in prompt_ids):
        raise EngineRejected("input_ids must be a flat list of integers.")
    if not prompt_ids:
        raise EngineRejected("input_ids cannot be empty.")
    if min(prompt_ids) < 0 or max(prompt_ids) >= limits.vocab_size:
        raise EngineRejected(f"input_ids contains an out-of-vocabulary token id; valid: [0, {limits.vocab_size}).")
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise EngineRejected("sampling_params must be an object.")
    return Sequence(
        request_id=str(body.get("rid") or uuid.uuid4().hex),
        prompt_ids=prompt_ids,
        params=_parse_sampling(sampling, len(prompt_ids), limits),
        logprobs=_parse_logprobs(body, len(prompt_ids), limits) if body.get("return_logprob") else None,
        stream=bool(body.get("stream")),
    )


def _parse_sampling(given: Mapping[str, Any], num_prompt: int, limits: Limits) -> DecodingParams:
    values = {name: value for name, value in given.items() if value is not None}
    for name, neutral in _NEUTRAL.items():
        if values.pop(name, None) not in neutral:
            raise EngineRejected(f"sampling parameter {name} is not supported by the embedded engine")
    known = DecodingParams.__dataclass_fields__.keys() - {"seed"} | {"sampling_seed"}
    for name in values:
        if name not in known:
            raise EngineRejected(f"unknown sampling parameter {name}{nearest(name, known)}")
    if "sampling_seed" in values:
        values["seed"] = values.pop("sampling_seed")
    stop = values.get("stop", ())
    values["stop"] = tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text)
    values["stop_token_ids"] = frozenset(values.get("stop_token_ids", ()))
    if num_prompt >= limits.context_len:
        raise EngineRejected(
            f"The input ({num_prompt} tokens) is longer than the model's context length ({limits.context_len} tokens)."
        )
    room = limits.context_len - num_prompt
    if values.get("max_new_tokens", 0) > room:
        raise EngineRejected(
            "Requested token count exceeds the model's maximum context length of "
            f"{limits.context_len} tokens. You requested a total of {values['max_new_tokens'] + num_prompt} tokens: "
            f"{num_prompt} tokens from the input messages and {values['max_new_tokens']} tokens for the completion. "
            "Please reduce the number of tokens in the input messages or the completion to fit within the limit."
        )
    values.setdefault("max_new_tokens", min(DecodingParams().max_new_tokens, room))
    params = DecodingParams(**values)
    _check_ranges(params)
    return params


def _check_ranges(params: DecodingParams) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise EngineRejected(f"{name} must be a finite number, got {value}.")
    for name in ("max_new_tokens", "min_new_tokens", "top_k"):
        if type(getattr(params, name)) is not int:
            raise EngineRejected(f"{name} must be an integer, got {getattr(params, name)}.")
    checks = {
        f"temperature must be a non-negative finite number, got {params.temperature}.": params.temperature >= 0,
        f"top_p must be in (0, 1], got {params.top_p}.": 0 < params.top_p <= 1,
        f"min_p must be in [0, 1], got {params.min_p}.": 0 <= params.min_p <= 1,
        f"top_k must be -1 (disable) or at least 1, got {params.top_k}.": params.top_k >= 1 or params.top_k == -1,
        f"frequency_penalty must be in [-2, 2], got {params.frequency_penalty}.": abs(params.frequency_penalty) <= 2,
        f"presence_penalty must be in [-2, 2], got {params.presence_penalty}.": abs(params.presence_penalty) <= 2,
        f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {params.repetition_penalty}.": (
            0 < params.repetition_penalty <= 2
        ),
        f"max_new_tokens must be at least 0, got {params.max_new_tokens}.": params.max_new_tokens >= 0,
        f"min_new_tokens must be in [0, max_new_tokens({params.max_new_tokens})], got {params.min_new_tokens}.": (
            0 <= params.min_new_tokens <= params.max_new_tokens
        ),
        "stop must be a string or a list of strings.": all(isinstance(text, str) for text in params.stop),
        "stop_token_ids must be a list of integers.": all(type(token_id) is int for token_id in params.stop_token_ids),
        f"sampling_seed must be an integer, got {params.seed}.": params.seed is None or type(params.seed) is int,
    }
    for message, holds in checks.items():
        if not holds:
            raise EngineRejected(message)


def _parse_logprobs(body: Mapping[str, Any], num_prompt: int, limits: Limits) -> LogprobsWanted:
    start = body.get("logprob_start_len")
    start = -1 if start is None else start
    num_top = body.get("top_logprobs_num") or 0
    token_ids = body.get("token_ids_logprob") or []
    if type(start) is not int or start < -1 or type(num_top) is not int or num_top < 0:
        raise EngineRejected("logprob_start_len must be an integer ≥ -1 and top_logprobs_num one ≥ 0.")
    if start > num_prompt:
        raise EngineRejected(
            f"logprob_start_len={start} is higher than the number of input tokens {num_prompt}. "
            "Please use a smaller logprob_start_len."
        )
    if not isinstance(token_ids, list) or not all(type(token_id) is int for token_id in token_ids):
        raise EngineRejected("token_ids_logprob must be a flat list of integers.")
    for token_id in token_ids:
        if not 0 <= token_id < limits.vocab_size:
            raise EngineRejected(
                f"token_ids_logprob contains out-of-vocabulary token id {token_id}; "
                f"valid range is [0, {limits.vocab_size})."
            )
    return LogprobsWanted(num_prompt if start == -1 else start, num_top, tuple(token_ids))


def answer(
    sequence: Sequence, num_tokens: int, text: str, version: str, *, finished: bool, since: int = 0
) -> dict[str, Any]:
    """What /generate says about the first `num_tokens` output tokens; of those from `since` on, when incremental."""
    meta: dict[str, Any] = {
        "id": sequence.request_id,
        "finish_reason": sequence.finish_reason if finished else None,
        "prompt_tokens": len(sequence.prompt_ids),
        "weight_version": sequence.final_version if finished else version,
        "num_retractions": sequence.num_retractions,
        "completion_tokens": num_tokens,
        "cached_tokens": sequence.cached_tokens,
    }
    if finished:
        meta["weight_versions"] = _spans(sequence)
        meta["weight_version"] = meta["weight_versions"][-1]["version"]
    if sequence.logprobs is not None:
        meta |= _logprobs(sequence, sequence.logprobs, since, num_tokens)
    return {"text": text, "output_ids": sequence.output_ids[since:num_tokens], "meta_info": meta}


def _spans(sequence: Sequence) -> list[dict[str, Any]]:
    if not sequence.spans:
        return [{"version": sequence.final_version, "start": 0, "end": 0}]
    starts = [0] + [end for _, end in sequence.spans]
    return [
        {"version": version, "start": start, "end": end}
        for start, (version, end) in zip(starts, sequence.spans, strict=False)
    ]


def _logprobs(sequence: Sequence, wanted: LogprobsWanted, since: int, num_tokens: int) -> dict[str, Any]:
    scored = sequence.prompt_ids[wanted.start :]
    inputs = zip([None, *sequence.input_logprobs], scored, strict=False)
    outputs = zip(sequence.output_logprobs[since:num_tokens], sequence.output_ids[since:num_tokens], strict=True)
    fields: dict[str, Any] = {
        "input_token_logprobs": [(logprob, token_id, None) for logprob, token_id in inputs],
        "output_token_logprobs": [(logprob, token_id, None) for logprob, token_id in outputs],
        "output_token_logprobs_length": num_tokens,
    }
    # A request for no tokens still says what would come first.
    end = num_tokens if sequence.params.max_new_tokens else 1
    if wanted.num_top:
        fields["input_top_logprobs"] = _rows([None, *sequence.input_top] if scored else [])
        fields["output_top_logprobs"] = _rows(sequence.output_top[since:end])
    if wanted.token_ids:
        fields["input_token_ids_logprobs"] = _rows([None, *sequence.input_chosen] if scored else [])
        fields["output_token_ids_logprobs"] = _rows(sequence.output_chosen[since:end])
    return fields


def _rows(rows: list[Any]) -> list[list[tuple[float, int, None]] | None]:
    return [None if row is None else [(logprob, token_id, None) for logprob, token_id in row] for row in rows]


__all__ = ["Limits", "TopRow", "answer", "parse_generate"]
