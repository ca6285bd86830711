"""A turn as the server would have stored it, made of ids and messages that a benchmark invents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, VersionSpan


def made_turn(
    messages: Sequence[Message], prompt_ids: Sequence[int], sampled_ids: Sequence[int], reply: Message, **place: Any
) -> Turn:
    """Args: place: the other fields of a `Turn`: `turn_id`, `session_id`, `parent_id` …"""
    spans = (VersionSpan(1, 0, len(sampled_ids)),)
    logprobs = (-0.5,) * len(sampled_ids)
    return Turn(
        messages=tuple(messages),
        prompt_ids=tuple(prompt_ids),
        completion=Completion(tuple(sampled_ids), logprobs, reply["content"], "stop", spans),
        sampling=SamplingParams(),
        reply=reply,
        created_at=time.time(),
        **{"kind": TurnKind.MAIN, **place},
    )
