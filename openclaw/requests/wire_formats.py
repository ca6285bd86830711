"""Parses bodies of three wire formats into chat messages: OpenAI chat completions, Anthropic messages, Responses.

    body of /v1/chat/completions ─┐
    body of /v1/messages         ─┼─ read_request ─▶ CanonicalRequest(messages, system, num_tools, …)
    body of /v1/responses        ─┘

Pure functions that skip unknown content: they also read recorded traffic of other servers. An Anthropic user message
with tool results becomes tool messages and a user message; the Responses items of one reply become one assistant
message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slime.messages import text_of
from slime.types import Message

from openclaw.requests.canonical import CanonicalRequest, canonical, conversation_of
from openclaw.requests.slices import in_slices


def read_request(endpoint: str, body: Mapping[str, Any]) -> CanonicalRequest:
    """The canonical form of a request body; skips unknown fields, parts and items.

    Args:
        endpoint: the path, with or without `/v1` and query; its ending selects the format.
    """
    path = endpoint.split("?", 1)[0].rstrip("/")
    messages: Iterable[Message]
    system: object = None
    if path.endswith("/responses"):
        messages, system = _from_responses(body.get("input")), body.get("instructions")
    elif path.endswith("/messages"):
        messages, system = _from_anthropic(body.get("messages")), body.get("system")
    else:
        messages = _objects(body.get("messages"))
    return conversation_of(map(canonical, messages), system=[text_of(system)], **_purpose(body))


async def read_conversation(
    body: Mapping[str, Any], messages: Iterable[Message], num_bytes: int = 0
) -> CanonicalRequest:
    """`read_request` for messages that an endpoint has validated, in slices between which other requests run.

    Args:
        num_bytes: size of the request, as for `in_slices`.
    """
    return conversation_of(await in_slices(map(canonical, messages), num_bytes), **_purpose(body))


def _purpose(body: Mapping[str, Any]) -> dict[str, Any]:
    """What besides the conversation tells what a request is for, as `conversation_of` takes it."""
    tools, previous = body.get("tools"), body.get("previous_response_id")
    return {
        "num_tools": len(tools) if isinstance(tools, list) else 0,
        "model": str(body.get("model") or ""),
        "output_schema": output_schema(body),
        "max_tokens": _max_tokens(body),
        "previous_reply_id": previous if isinstance(previous, str) else None,
    }


def read_reply(endpoint: str, body: Mapping[str, Any]) -> Message:
    """The chat message of a complete reply of any wire format: content, reasoning_content and tool_calls."""
    path = endpoint.split("?", 1)[0].rstrip("/")
    messages: Iterable[Message]
    if path.endswith("/responses"):
        messages = _from_responses(body.get("output"))
    elif path.endswith("/messages"):
        messages = _from_anthropic([{"role": "assistant", "content": body.get("content")}])
    else:
        choices = body.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else {}
        messages = _objects([first.get("message") or {}])
    return next(iter(messages), {"role": "assistant", "content": ""})


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(name), int):
            return int(body[name])
    return None


def output_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema of a structured reply, which each wire format puts elsewhere."""
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


# ── Anthropic messages ───────────────────────────────────────────────────────────────────────────────────────────────


def _from_anthropic(messages: object) -> Iterator[Message]:
    for message in _objects(messages):
        role, content = str(message.get("role")), message.get("content")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "assistant":
            yield _anthropic_assistant(content)
        else:
            yield from _anthropic_user(role, content)


def _anthropic_assistant(content: object) -> Message:
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


def _anthropic_user(role: str, content: object) -> Iterator[Message]:
    """Tool results first, as chat templates require, then the rest of the message."""
    parts = []
    for block in _objects(content):
        if block.get("type") == "tool_result":
            yield _tool_result(block.get("tool_use_id"), block.get("content"))
        elif block.get("type") == "text":
            parts.append({"type": "text", "text": block.get("text") or ""})
        else:
            parts.append(block)
    if parts:
        yield {"role": role, "content": parts}


# ── Responses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_responses(items: object) -> list[Message]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    reader = _ResponsesReader()
    for item in _objects(items):
        reader.read(item)
    reader.close_reply()
    return reader.messages


class _ResponsesReader:
    """Merges the items of one reply (reasoning, message, calls) into one assistant message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
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
            self.messages.append(_tool_result(item.get("call_id"), item.get("output")))
        elif kind.endswith("_call") and item.get("call_id"):
            arguments = item.get("arguments", item.get("input", item.get("action")))
            self._calls.append(_chat_call(item["call_id"], item.get("name") or kind, arguments))

    def _read_message(self, item: dict[str, Any]) -> None:
        text = text_of(item.get("content"))
        if item.get("role") == "assistant":
            if self._calls or self._texts:  # a message after calls, or a second message, starts another reply
                self.close_reply()
            self._texts.append(text)
            return
        self.close_reply()
        role = "system" if item.get("role") == "developer" else str(item.get("role"))
        self.messages.append({"role": role, "content": text})

    def close_reply(self) -> None:
        if self._texts or self._calls:
            self.messages.append(_assistant("\n".join(self._texts), "\n".join(self._thoughts), self._calls))
        self._texts, self._thoughts, self._calls = [], [], []


# ── shared ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tool_result(call_id: object, content: object) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text_of(content)}


def _chat_call(call_id: object, name: object, arguments: object) -> dict[str, Any]:
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False, separators=(",", ":"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _assistant(text: str, thoughts: str, calls: list[dict[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message
