"""Turns to store: small, complete and distinct."""

from __future__ import annotations

from typing import Any

from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan


def build_turn(turn_id: str, parent: Turn | None = None, session_id: str = "s1", **changes: Any) -> Turn:
    """`build_turn("t2", parent=first)` continues `first` as a client that rewrites nothing would."""
    history = () if parent is None else (*parent.messages, parent.reply)
    fed = (1, 2) if parent is None else (*parent.prompt_ids, *parent.completion.token_ids)
    completion = Completion(
        (7, 8, len(turn_id)), (-0.1, -0.7, -0.25), f"reply {turn_id}", "stop", (VersionSpan(3, 0, 3),)
    )
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": session_id,
        "parent_id": None if parent is None else parent.turn_id,
        "kind": TurnKind.MAIN,
        "messages": (*history, {"role": "user", "content": f"ask {turn_id}"}),
        "prompt_ids": (*fed, 11, 12, 13),
        "completion": completion,
        "sampling": SamplingParams(temperature=0.7, stop=("###",)),
        "reply": {"role": "assistant", "content": completion.text},
        "tools": ({"type": "function", "function": {"name": "search"}},),
        "created_at": 1_790_000_000.25,
        "source": "alice",
        "template_options": {"enable_thinking": False},
        "matching": {"credential": "c0", "base": None},
        "details": {"headers": {"x-session-id": session_id}},
    }
    return Turn(**{**values, **changes})
