"""Parses and validates the OpenAI sampling parameters for every endpoint that generates.

body ─ read_sampling ─▶ SamplingParams      or RequestError that names the field
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.errors import RequestError, shown
from slime.types import SamplingParams

MIN_TEMPERATURE = 1e-5


def read_sampling(body: Mapping[str, Any], default_max_tokens: int) -> SamplingParams:
    """The parameters of a body; the token limit is `max_completion_tokens`, else `max_tokens`, else the default."""
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    seed = body.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise RequestError("seed must be an integer", "seed")
    return SamplingParams(
        temperature=_temperature(body),
        top_p=_number(body, "top_p", 1.0, 1e-9, 1.0),
        top_k=_integer(body, "top_k", -1, -1),
        min_p=_number(body, "min_p", 0.0, 0.0, 1.0),
        repetition_penalty=_number(body, "repetition_penalty", 1.0, 1e-9, 2.0),
        frequency_penalty=_number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        presence_penalty=_number(body, "presence_penalty", 0.0, -2.0, 2.0),
        max_new_tokens=_integer(body, limit, default_max_tokens, 1),
        stop=_stop(body.get("stop")),
        seed=seed,
    )


def _temperature(body: Mapping[str, Any]) -> float:
    """Zero (greedy), or large enough that logits divided by it stay finite."""
    value = _number(body, "temperature", 1.0, 0.0, 100.0)
    if 0.0 < value < MIN_TEMPERATURE:
        raise RequestError(f"temperature must be 0 or at least {MIN_TEMPERATURE:g}, not {shown(value)}", "temperature")
    return value


def _stop(stop: Any) -> tuple[str, ...]:
    entries = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise RequestError("stop must be a string or a list of strings", "stop")
    return tuple(entry for entry in entries if entry)


def _number(body: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low:g} and {high:g}, not {shown(value)}", name)
    return float(value)


def _integer(body: Mapping[str, Any], name: str, default: int, low: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer", name)
    if value < low:
        raise RequestError(f"{name} must be at least {low}, not {shown(value)}", name)
    return value
