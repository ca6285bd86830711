"""Chat messages as they are written: which shape a message has, and which text is in it.

    a client's body, a file of conversations ─ read_message ─▶ Message           or RequestError that names the field
    content of a message ─ parts_of ─▶ (type, text or None) ─ text_of ─▶ one text

The server, conversation files, the chat template, judges and rewards read messages here, so a message that one of them
takes is one for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slime.errors import RequestError, nearest, shown
from slime.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_PARTS = 4_096
"""Text parts of one message, and tool calls of one: what clients send is a tenth of it."""
TEXT_TYPES = ("text", "input_text", "output_text", "refusal")


def read_message(value: Any, where: str = "", *, text_only: bool = True) -> Message:
    """A message, checked and otherwise as it came.

    >>> read_message({"role": "user", "content": 3}, "messages[0]")
    RequestError: content must be a string or a list of parts  (its field: messages[0].content)

    Args:
        where: the field that holds it, e.g. `messages[2]`; the error names the field within it.
        text_only: refuse what a text model cannot be fed: parts that are no text, a message without content.

    Raises:
        RequestError: it is no message, or not one of text.
    """
    if not isinstance(value, dict):
        raise RequestError("a message must be an object with a role and a content", where)
    role = value.get("role")
    if role not in ROLES:
        hint = nearest(role[:80], ROLES) if isinstance(role, str) else ""
        raise RequestError(f"role {shown(role)} is not one of {', '.join(ROLES)}{hint}", f"{where}.role")
    content = value.get("content")
    if isinstance(content, list):
        if len(content) > MAX_PARTS:
            raise RequestError(f"a message takes {MAX_PARTS} parts, not {len(content)}", f"{where}.content")
        for index, part in enumerate(content):
            _check_part(part, where, index, text_only)
    elif content is None and role != "assistant" and text_only:
        raise RequestError(f"a {role} message needs content", f"{where}.content")
    elif content is not None and not isinstance(content, str):
        raise RequestError("content must be a string or a list of parts", f"{where}.content")
    calls = value.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise RequestError("tool_calls must be a list", f"{where}.tool_calls")
        if len(calls) > MAX_PARTS:
            raise RequestError(f"a message takes {MAX_PARTS} tool calls, not {len(calls)}", f"{where}.tool_calls")
        for index, call in enumerate(calls):
            _check_call(call, where, index)
    return value


def _check_part(part: Any, where: str, index: int, text_only: bool) -> None:
    if isinstance(part, str):
        return
    field = f"{where}.content[{index}]"
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise RequestError("a content part must be an object with a type", field)
    if part["type"] not in TEXT_TYPES:
        if not text_only:
            return
        raise RequestError(
            f"content of type {shown(part['type'])} is not supported: this model reads text only", f"{field}.type"
        )
    if _text_in(part) is None:
        raise RequestError("a text part needs its text as a string", f"{field}.text")


def _check_call(call: Any, where: str, index: int) -> None:
    field = f"{where}.tool_calls[{index}].function"
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("a tool call needs a function with a name", field)
    if not isinstance(function.get("arguments", ""), str | dict):
        raise RequestError("arguments must be a string", f"{field}.arguments")


# ── what is in a message ─────────────────────────────────────────────────────────────────────────────────────────────


def text_of(content: object) -> str:
    """The text of a message's content: its text parts, a line each; parts that are no text are left out.

    >>> text_of([{"type": "text", "text": "Look:"}, {"type": "image_url"}, "nice"])
    'Look:\\nnice'
    """
    if isinstance(content, str):
        return content
    return "\n".join(text for _, text in parts_of(content) if text is not None)


def parts_of(content: object) -> Iterator[tuple[str, str | None]]:
    """Each part of a content as its type and its text, None where it is no text.

    >>> list(parts_of([{"type": "image_url"}, {"type": "refusal", "refusal": "No."}]))
    [('image_url', None), ('refusal', 'No.')]
    """
    if isinstance(content, str):
        yield "text", content
    elif isinstance(content, Sequence):
        for part in content:
            if isinstance(part, str):
                yield "text", part
            elif isinstance(part, Mapping):
                yield str(part.get("type") or "part"), _text_in(part)
            else:
                yield "part", None


def _text_in(part: Mapping[str, Any]) -> str | None:
    text = part.get("refusal" if part.get("type") == "refusal" else "text")
    return text if isinstance(text, str) else None


def calls_of(message: Message) -> list[tuple[str, str]]:
    """Name and arguments of each tool call; arguments that are not the customary string are written as JSON."""
    found = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = function.get("arguments", "")
            found.append((str(function.get("name", "")), arguments if isinstance(arguments, str) else _json(arguments)))
    return found


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return "(nested too deep)"
