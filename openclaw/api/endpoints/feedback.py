"""Implements `POST /v1/feedback`: stores a person's rating of a reply, given outside the conversation at any time.

    {"turn_id": "t2m9…", "kind": "thumbs", "value": "up"}       the id is in `x-openclaw-turn` and `openclaw.turn`
    {"kind": "score", "value": -0.5, "text": "too long"}        the newest reply of the session that the headers,
                                                                `session_id` or `user` name
    {"turn_id": "t2m9…", "kind": "text", "text": "Shorter."}    text only: the judge reads it as a next state

    body ─▶ Feedback ─▶ the turn, of any API key ─▶ Store.add_feedback, fsync ─▶ its effect

Feedback may be repeated: the newest counts, and all of it is kept. It takes the admin key, not the chat key: an agent
that runs commands holds the chat key, and a person's feedback outranks every judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from slime.errors import RequestError, nearest, shown
from slime.types import Feedback, TurnState

from openclaw.api.exchange import Exchange, json_object
from openclaw.capture import Capture, Heard
from openclaw.requests.identity import IDENTITY_FIELDS, identify
from openclaw.requests.turn_ids import turn_of

KINDS = ("thumbs", "score", "text")
MAX_TEXT_CHARS = 20_000
MAX_FEEDBACK_BYTES = 256 * 1024
_FIELDS = frozenset({"turn_id", "kind", "value", "text", "model"}) | IDENTITY_FIELDS
_THUMBS = {"up": 1.0, "down": -1.0}


async def serve_feedback(exchange: Exchange, raw: bytes, capture: Capture) -> None:
    """Serve one request; the response is sent after the feedback is on disk.

    Raises:
        RequestError: the body is invalid, there is no such turn, or capture is off.
        StoreError: the store cannot commit it.
    """
    body = await json_object(raw)
    feedback = parse_feedback(body)
    turn_id = _turn_id(body)
    session = identify(exchange.headers, body).name if turn_id is None else None
    if turn_id is None and session is None:
        raise RequestError("missing turn_id: send it, or name the session by header, session_id or user", "turn_id")
    heard = await capture.feedback(turn_id, session or "", feedback)
    await exchange.answer(200, _answer(heard))


def parse_feedback(body: Mapping[str, Any]) -> Feedback:
    """Validate a body. Raises RequestError that names the field."""
    for name in body:
        if name not in _FIELDS:
            raise RequestError(f"unknown field {shown(name)}{nearest(name[:80], _FIELDS)}", name[:80])
    kind, text = body.get("kind"), body.get("text")
    if kind not in KINDS:
        raise RequestError(
            f"kind must be one of {', '.join(KINDS)}, not {shown(kind)}{nearest(str(kind)[:80], KINDS)}", "kind"
        )
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise RequestError("text must be a string", "text")
    if len(text) > MAX_TEXT_CHARS:
        raise RequestError(f"text has {len(text)} characters; the limit is {MAX_TEXT_CHARS}", "text")
    value = _value(kind, body.get("value"))
    if kind == "text" and not text.strip():
        raise RequestError("feedback of kind text needs a non-empty text", "text")
    return Feedback(kind, value, text)


def _value(kind: str, said: Any) -> float | None:
    if kind == "text" and said is None:
        return None
    if kind == "thumbs" and isinstance(said, str) and said.lower() in _THUMBS:
        return _THUMBS[said.lower()]
    is_number = isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said)
    if kind == "thumbs":
        if not is_number or abs(said) != 1:
            raise RequestError('value must be "up" or "down", or 1 or -1', "value")
    elif not is_number or not -1 <= said <= 1:
        raise RequestError(f"value must be a number from -1 to 1, not {shown(said)}", "value")
    return float(said)


def _turn_id(body: Mapping[str, Any]) -> str | None:
    """The named turn: by its own id, its reply's id, or the id of a tool call in the reply."""
    named = body.get("turn_id")
    if named is None:
        return None
    turn_id = turn_of(named) if isinstance(named, str) else None
    if turn_id is None:
        raise RequestError(f"turn_id {shown(named)} is not the id of a turn, reply or tool call", "turn_id")
    return turn_id


def _answer(heard: Heard) -> bytes:
    effect, message = effect_of(heard)
    said = heard.feedback
    return orjson.dumps(
        {
            "object": "feedback",
            "id": said.number,
            "turn_id": heard.turn_id,
            "session_id": heard.session_id,
            "kind": said.kind,
            "value": said.value,
            "text": said.text or None,
            "created_at": said.created_at,
            "state": heard.state,
            "trained_at": heard.trained_at,
            "effect": effect,
            "message": message,
        }
    )


def effect_of(heard: Heard) -> tuple[str, str]:
    """The effect of the feedback, as a code for programs and a sentence for people."""
    if heard.trained_at is not None:
        return "too_late", f"stored; update {heard.trained_at} already trained the turn with its earlier verdict"
    if not heard.kind.is_trainable:
        return "not_trained", f"stored; turns of kind {heard.kind} are not trained"
    if heard.state in (TurnState.EXCLUDED, TurnState.ABORTED):
        return "not_trained", f"stored; the turn is {heard.state} and is not trained"
    return "counts", "stored; the turn is judged by it"
