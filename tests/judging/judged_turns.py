"""Turns to judge: a request, our reply and what came next."""

from __future__ import annotations

from typing import Any

from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, VersionSpan


def turn_with(next_state: list[Message] | str | None, request: str = "Say hi.", reply: Any = "Hi there.") -> Turn:
    """`turn_with("Thanks!")`: a turn whose reply was answered so."""
    messages = [{"role": "user", "content": next_state}] if isinstance(next_state, str) else next_state
    return Turn(
        turn_id="t1",
        session_id="s1",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=({"role": "system", "content": "SYSTEM-PROMPT"}, {"role": "user", "content": request}),
        prompt_ids=(1, 2, 3),
        completion=Completion((4,), (-0.1,), str(reply), "stop", (VersionSpan(0, 0, 1),)),
        sampling=SamplingParams(),
        reply=reply if isinstance(reply, dict) else {"role": "assistant", "content": reply},
        next_state=None if messages is None else tuple(messages),
    )
