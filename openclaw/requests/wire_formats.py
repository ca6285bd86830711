"""Chat completions, Anthropic messages and Responses as one list of canonical messages. Pure functions.

    body of /v1/chat/completions ─┐
    body of /v1/messages         ─┼─▶ CanonicalRequest(messages, system, num_tools, …)
    body of /v1/responses        ─┘

A canonical message is an OpenAI chat message (`message`, what rendering and judging read) beside the few things that
matching compares: role, text, and the ids of the tool calls it makes or answers. An Anthropic user message with tool
results becomes tool messages and a user message; Responses items of one reply become one assistant message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slime.messages import text_of
from slime.types import Message

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@dataclass(frozen=True, slots=True)
class CanonicalMessage:
    """One message of a conversation, whatever dialect it came in.

    >>> CanonicalMessage("tool", "42", ("call9f0",), {"role": "tool", "tool_call_id": "call_9f0", "content": "42"})

    Attributes:
        role: `system` (also `developer`), `user`, `assistant` or `tool`.
        text: its text parts, joined by line ends.
        call_ids: of an assistant message the calls it makes, of a tool message the call it answers; letters and
            digits only, because clients drop the rest.
        message: the same as a chat message; the client's own object where it already was one.
    """

    role: str
    text: str
    call_ids: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """What capture reads of a request body.

    Attributes:
        messages: the conversation, from the first message that is not part of the system prompt.
        system: the system prompt's text, wherever the dialect puts it.
        num_tools: how many tools the request offers.
        model: as the client names it.
        output_schema: the JSON schema that the reply must fit, when the client gave one.
        max_tokens: the client's limit, None when it set none.
        previous_reply_id: the reply that the messages continue without repeating it (Responses).
    """

    messages: tuple[CanonicalMessage, ...]
    system: str
    num_tools: int
    model: str
    output_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    previous_reply_id: str | None = None


def alphanumeric(call_id: object) -> str:
    """The letters and digits of an id: `call_mock_08` → `callmock08`."""
    text = call_id if isinstance(call_id, str) else ""
    return text if text.isalnum() else "".join(filter(str.isalnum, text))


def with_text(message: Message, text: str) -> Message:
    """The message with another text; parts that are no text stay as they are, behind it."""
    content = message.get("content")
    others = (
        [part for part in content if isinstance(part, dict) and "text" not in part] if isinstance(content, list) else []
    )
    return {**message, "content": [{"type": "text", "text": text}, *others] if others else text}


def read_request(endpoint: str, body: Mapping[str, Any]) -> CanonicalRequest:
    """The canonical form of a request body; unknown fields, parts and items are passed over.

    Args:
        endpoint: the path, with or without `/v1` and query: what it ends in decides.
    """
    path = endpoint.split("?", 1)[0].rstrip("/")
    if path.endswith("/responses"):
        messages = _read_responses(body.get("input"))
        system = [text_of(body.get("instructions"))]
    elif path.endswith("/messages"):
        messages = _read_anthropic(body.get("messages"))
        system = [text_of(body.get("system"))]
    else:
        messages = _read_chat(body.get("messages"))
        system = []
    start = 0
    while start < len(messages) and messages[start].role == "system":
        system.append(messages[start].text)
        start += 1
    tools = body.get("tools")
    previous = body.get("previous_response_id")
    return CanonicalRequest(
        messages=tuple(messages[start:]),
        system="\n".join(part for part in system if part),
        num_tools=len(tools) if isinstance(tools, list) else 0,
        model=str(body.get("model") or ""),
        output_schema=_output_schema(body),
        max_tokens=_max_tokens(body),
        previous_reply_id=previous if isinstance(previous, str) else None,
    )


def read_reply(endpoint: str, body: Mapping[str, Any]) -> Message:
    """The chat message of a complete reply of any dialect: content, reasoning_content and tool_calls."""
    path = endpoint.split("?", 1)[0].rstrip("/")
    if path.endswith("/responses"):
        messages = _read_responses(body.get("output"))
    elif path.endswith("/messages"):
        messages = _read_anthropic([{"role": "assistant", "content": body.get("content")}])
    else:
        choices = body.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else {}
        messages = _read_chat([first.get("message") or {}])
    return messages[0].message if messages else {"role": "assistant", "content": ""}


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int):
            return int(body[name])
    return None


def _output_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema of a structured reply: three dialects, three places."""
    response_format = body.get("response_format")
    if isinstance(response_format, dict):
        schema = response_format.get("json_schema")
        return schema.get("schema") if isinstance(schema, dict) else None
    for outer in ("output_config", "text"):
        config = body.get(outer)
        form = config.get("format") if isinstance(config, dict) else None
        if isinstance(form, dict) and isinstance(form.get("schema"), dict):
            return form["schema"]  # type: ignore[no-any-return]
    return None


def _objects(value: object) -> Iterable[dict[str, Any]]:
    return (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


# ── chat completions ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read_chat(messages: object) -> list[CanonicalMessage]:
    out = []
    for message in _objects(messages):
        role = message.get("role")
        ids: tuple[str, ...] = ()
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls:
                ids = tuple(alphanumeric(call.get("id")) for call in _objects(calls))
        elif role == "tool":
            ids = (alphanumeric(message.get("tool_call_id")),)
        elif role == "developer":
            role = "system"
        elif role == "function":  # the form before tools: no ids
            role = "tool"
        out.append(CanonicalMessage(str(role), text_of(message.get("content")), ids, message))
    return out


# ── Anthropic messages ───────────────────────────────────────────────────────────────────────────────────────────────


def _read_anthropic(messages: object) -> list[CanonicalMessage]:
    out: list[CanonicalMessage] = []
    for message in _objects(messages):
        role, content = str(message.get("role")), message.get("content")
        if isinstance(content, str):
            out.append(CanonicalMessage(role, content, (), {"role": role, "content": content}))
        elif role == "assistant":
            out.append(_anthropic_assistant(content))
        else:
            out.extend(_anthropic_user(role, content))
    return out


def _anthropic_assistant(content: object) -> CanonicalMessage:
    texts, thoughts, calls = [], [], []
    for block in _objects(content):
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block.get("text") or ""))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            calls.append(_chat_call(block.get("id"), block.get("name"), block.get("input")))
    return _assistant("\n".join(texts), "\n".join(thoughts), calls)


def _anthropic_user(role: str, content: object) -> Iterable[CanonicalMessage]:
    """Tool results first, as every chat template wants them, then what else the message says."""
    parts = []
    for block in _objects(content):
        if block.get("type") == "tool_result":
            call_id, text = block.get("tool_use_id"), text_of(block.get("content"))
            chat = {"role": "tool", "tool_call_id": call_id, "content": text}
            yield CanonicalMessage("tool", text, (alphanumeric(call_id),), chat)
        elif block.get("type") == "text":
            parts.append({"type": "text", "text": block.get("text") or ""})
        else:
            parts.append(block)
    if parts:
        yield CanonicalMessage(role, text_of(parts), (), {"role": role, "content": parts})


# ── Responses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_responses(items: object) -> list[CanonicalMessage]:
    if isinstance(items, str):
        return [CanonicalMessage("user", items, (), {"role": "user", "content": items})]
    reader = _ResponsesReader()
    for item in _objects(items):
        reader.read(item)
    reader.close_reply()
    return reader.messages


class _ResponsesReader:
    """Gathers the items of one reply (reasoning, message, calls) into one assistant message."""

    def __init__(self) -> None:
        self.messages: list[CanonicalMessage] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def read(self, item: dict[str, Any]) -> None:
        kind = str(item.get("type") or "message")
        if kind == "message":
            self._read_message(item)
        elif kind == "reasoning":
            if self._calls or self._texts:
                self.close_reply()
            self._thoughts.append(text_of(item.get("summary")))
        elif kind.endswith("_call_output"):
            self.close_reply()
            text = text_of(item.get("output"))
            call_id = item.get("call_id")
            chat = {"role": "tool", "tool_call_id": call_id, "content": text}
            self.messages.append(CanonicalMessage("tool", text, (alphanumeric(call_id),), chat))
        elif kind.endswith("_call") and item.get("call_id"):
            arguments = item.get("arguments", item.get("input", item.get("action")))
            self._calls.append(_chat_call(item["call_id"], item.get("name") or kind, arguments))

    def _read_message(self, item: dict[str, Any]) -> None:
        text = text_of(item.get("content"))
        if item.get("role") == "assistant":
            if self._calls or self._texts:  # a message after calls, or a second one, is another reply
                self.close_reply()
            self._texts.append(text)
            return
        self.close_reply()
        role = "system" if item.get("role") == "developer" else str(item.get("role"))
        self.messages.append(CanonicalMessage(role, text, (), {"role": role, "content": text}))

    def close_reply(self) -> None:
        if self._texts or self._calls:
            self.messages.append(_assistant("\n".join(self._texts), "\n".join(self._thoughts), self._calls))
        self._texts, self._thoughts, self._calls = [], [], []


# ── shared ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _chat_call(call_id: object, name: object, arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False, separators=(",", ":"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _assistant(text: str, thoughts: str, calls: list[dict[str, Any]]) -> CanonicalMessage:
    message: Message = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return CanonicalMessage("assistant", text, tuple(alphanumeric(call["id"]) for call in calls), message)
