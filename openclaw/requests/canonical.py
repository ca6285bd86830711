"""Converts chat messages into the canonical form that matching compares: role, text, tool-call ids. Pure functions.

    chat messages of any wire format ─ canonical, conversation_of ─▶ CanonicalRequest(messages, system, …)

A canonical message pairs the OpenAI chat message, which rendering and judging read, with the fields that matching
compares: role, text, and the ids of the tool calls it makes or answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slime.messages import text_of
from slime.types import Message


@dataclass(frozen=True, slots=True)
class CanonicalMessage:
    """One message of a conversation, independent of the wire format.

    >>> CanonicalMessage("tool", "42", ("call9f0",), {"role": "tool", "tool_call_id": "call_9f0", "content": "42"})

    Attributes:
        role: `system` (also `developer`), `user`, `assistant` or `tool`.
        text: its text parts, joined by newlines.
        call_ids: the calls that an assistant message makes, or the one that a tool message answers; letters and
            digits only, because clients drop the rest.
        message: the OpenAI chat message; the client's own object if it already was one.
    """

    role: str
    text: str
    call_ids: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A conversation, and the request fields that hint at its purpose.

    Attributes:
        messages: the conversation after the system prompt.
        system: the system prompt's text, wherever the wire format puts it.
        num_tools: tools that the request offers.
        model: the model name that the client sent.
        output_schema: the JSON schema for the reply, if the client sent one.
        max_tokens: the client's limit; None if it set none.
        previous_reply_id: the reply that the messages continue without repeating it (Responses API).
    """

    messages: tuple[CanonicalMessage, ...]
    system: str
    num_tools: int
    model: str
    output_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    previous_reply_id: str | None = None


def conversation_of(
    messages: Iterable[CanonicalMessage],
    *,
    system: Iterable[str] = (),
    num_tools: int = 0,
    model: str = "",
    output_schema: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    previous_reply_id: str | None = None,
) -> CanonicalRequest:
    """The canonical form of a request, of its messages' canonical forms.

    Args:
        system: texts of the system prompt from outside the messages.
    """
    found = list(messages)
    start = next((index for index, message in enumerate(found) if message.role != "system"), len(found))
    return CanonicalRequest(
        messages=tuple(found[start:]),
        system="\n".join(filter(None, (*system, *(message.text for message in found[:start])))),
        num_tools=num_tools,
        model=model,
        output_schema=output_schema,
        max_tokens=max_tokens,
        previous_reply_id=previous_reply_id,
    )


def canonical(message: Message) -> CanonicalMessage:
    """The canonical form of one chat message; a call without an id gets an empty one."""
    role = message.get("role")
    ids: tuple[str, ...] = ()
    if role == "assistant":
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            ids = tuple(alphanumeric(call.get("id")) for call in calls if isinstance(call, dict))
    elif role == "tool":
        ids = (alphanumeric(message.get("tool_call_id")),)
    elif role == "developer":
        role = "system"
    elif role == "function":  # the deprecated functions API: no ids
        role = "tool"
    return CanonicalMessage(str(role), text_of(message.get("content")), ids, message)


def alphanumeric(call_id: object) -> str:
    """The letters and digits of an id: `call_mock_08` → `callmock08`."""
    text = call_id if isinstance(call_id, str) else ""
    return text if text.isalnum() else "".join(filter(str.isalnum, text))


def with_text(message: Message, text: str) -> Message:
    """The message with its text replaced; parts that are not text follow unchanged."""
    content = message.get("content")
    others = (
        [part for part in content if isinstance(part, dict) and "text" not in part] if isinstance(content, list) else []
    )
    return {**message, "content": [{"type": "text", "text": text}, *others] if others else text}
