"""Implements `POST /v1/chat/completions`: parses and writes OpenAI's wire format.

    body ─ read_chat_request ─▶ ChatRequest ─ Generation.run ─▶ Placed, Part, … Reply ─ ReplyWriter ─▶ one JSON object,
                                                       or events: b'data: {"id": …, "choices": [{"delta": {…}}]}\\n\\n'

Unknown fields are ignored, since clients send many. Fields that would change what is sampled and that this server
cannot honour (several choices, logit biases, images) are refused. `tool_choice: "required"` and `response_format` are
accepted but not enforced: constrained decoding would make the log-probs differ from those of the policy.

Every field that a known client needs is always present: id, object, created, model, choices[].index, the role in the
first delta, index, id, type and name in the first delta of a tool call, exactly one finish_reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from slime.chat import Delta
from slime.errors import RequestError, shown
from slime.messages import read_message
from slime.types import Message

from openclaw.api.endpoints.sampling import read_sampling
from openclaw.api.exchange import Answer, Last, Opening, Whole
from openclaw.api.generation import Generation, Part, Placed, Reply
from openclaw.api.incoming import Incoming
from openclaw.requests.chat_request import ChatRequest
from openclaw.requests.slices import in_slices
from openclaw.requests.wire_formats import read_conversation

PATH = "/v1/chat/completions"
MAX_MESSAGES, MAX_TOOLS = 4_096, 1_024
"""Limits per request, about ten times what clients send."""
DONE = b"data: [DONE]\n\n"

TokenText = Callable[[int], tuple[str, tuple[int, ...]]]


class ChatCompletions:
    """The chat completions endpoint."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._model = generation.model

    async def answer(self, incoming: Incoming) -> Answer:
        """Serve one request. Raises RequestError before generation starts, then as `Generation.run`."""
        body = incoming.body
        request = await read_chat_request(incoming, self._model.default_max_tokens)
        include_usage = _flag(body.get("stream_options") or {}, "include_usage", "stream_options.include_usage")
        token_text = self._model.chat.token_text if _flag(body, "logprobs") else None
        async with aclosing(self._generation.run(request)) as events:
            async for event in events:
                if isinstance(event, Placed):
                    writer = ReplyWriter(event.turn_id, self._model.name, include_usage, token_text)
                    headers = [(b"x-openclaw-turn", event.turn_id.encode())]
                    if request.stream:
                        yield Opening(headers, error_event)
                elif isinstance(event, Part):
                    writer.tokens(event.token_ids, event.logprobs)
                    if event.deltas:
                        yield b"".join([writer.chunk(delta) for delta in event.deltas])
                elif request.stream:
                    yield Last(writer.last_chunks(event))
                else:
                    yield Whole(writer.whole(event), [*headers, (b"x-openclaw-capture", event.capture.encode())])


# ---- reading


async def read_chat_request(incoming: Incoming, default_max_tokens: int) -> ChatRequest:
    """Validate a body. Raises RequestError that names the field."""
    body = incoming.body
    tools = _tools(body)
    _refuse_unsupported(body)
    messages = await in_slices(_messages(body), incoming.num_bytes)
    return ChatRequest(
        messages=messages,
        conversation=await read_conversation(body, messages, incoming.num_bytes),
        sampling=read_sampling(body, default_max_tokens),
        caller=incoming.caller,
        tools=tools,
        offers_tools=bool(tools) and body.get("tool_choice") != "none",
        stream=_flag(body, "stream"),
        template_options=_template_options(body),
        num_bytes=incoming.num_bytes,
    )


def _messages(body: Mapping[str, Any]) -> Iterator[Message]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", "messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"{len(messages)} messages exceed the limit of {MAX_MESSAGES} per request", "messages")
    for index, message in enumerate(messages):
        yield read_message(message, f"messages[{index}]")


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools") or []
    if body.get("functions"):
        raise RequestError("functions are no longer supported; use tools", "functions")
    if not isinstance(tools, list):
        raise RequestError("tools must be a list", "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"{len(tools)} tools exceed the limit of {MAX_TOOLS} per request", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise RequestError("a tool must have type 'function' and a function object", f"tools[{index}]")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise RequestError("a function must have a name", f"tools[{index}].function.name")
    return tools


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise RequestError("stream_options must be an object", "stream_options")
    if body.get("n") not in (None, 1):
        raise RequestError("n must be 1: repeat the request for another choice", "n")
    if body.get("top_logprobs"):
        raise RequestError("top_logprobs is not supported; use logprobs for the sampled tokens", "top_logprobs")
    if body.get("logit_bias"):
        raise RequestError("logit_bias is not supported", "logit_bias")
    modalities = body.get("modalities") or []
    if not isinstance(modalities, list):
        raise RequestError("modalities must be a list", "modalities")
    if body.get("audio") or "audio" in modalities:
        raise RequestError("audio is not supported: this model generates text only", "modalities")


def _template_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """`enable_thinking`, at the top level or in `chat_template_kwargs`; clients use both."""
    given = body.get("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise RequestError("chat_template_kwargs must be an object", "chat_template_kwargs")
    for name in given:
        if name != "enable_thinking":
            raise RequestError(
                f"template variable {shown(name)} is not supported, only enable_thinking", "chat_template_kwargs"
            )
    thinking = given.get("enable_thinking", body.get("enable_thinking"))
    if thinking is None:
        return {}
    if not isinstance(thinking, bool):
        raise RequestError("enable_thinking must be true or false", "enable_thinking")
    return {"enable_thinking": thinking}


def _flag(body: Mapping[str, Any], name: str, param: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", param or name)
    return bool(value)


# ---- writing


class ReplyWriter:
    """Serializes one reply as a JSON object or as stream events.

    Args:
        turn_id: forms the reply's id: `chatcmpl-t2m9xq0c5k7v1b3n8d4f6`.
        token_text: decodes a token id for log-probs; None when the client requests none.
    """

    def __init__(self, turn_id: str, model: str, include_usage: bool, token_text: TokenText | None) -> None:
        self._include_usage = include_usage
        self._token_text = token_text
        self._waiting: list[dict[str, Any]] = []  # log-probs of tokens whose text is not sent yet
        self._has_role = False
        reply_id = f"chatcmpl-{turn_id}"
        self._head = {"id": reply_id, "object": "chat.completion", "created": int(time.time()), "model": model}
        # Shared by all chunks: an event is this head, the delta, and the end.
        self._chunk_head = b"data: " + orjson.dumps(self._head | {"object": "chat.completion.chunk"})[:-1]
        self._chunk_head += b',"usage":null' if include_usage else b""

    def tokens(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Buffer the log-probs of sampled tokens until the next chunk."""
        if self._token_text is not None:
            self._waiting.extend(self._entries(token_ids, logprobs))

    def chunk(self, delta: Delta) -> bytes:
        """One event of the stream; the first also carries the role."""
        if not self._has_role:
            self._has_role = True
            delta = {"role": "assistant"} | delta
        return self._event(delta, b"null")

    def last_chunks(self, reply: Reply) -> bytes:
        """The end of the stream: finish_reason, usage if requested, [DONE]; one write, after the commit."""
        delta = {} if self._has_role else {"role": "assistant", "content": ""}
        last = self._event(delta, orjson.dumps(reply.finish_reason))[:-3]
        last += b',"openclaw":' + orjson.dumps(_note(reply)) + b"}\n\n"
        if self._include_usage:
            body = self._head | {"object": "chat.completion.chunk", "choices": [], "usage": _usage(reply)}
            last += b"data: " + orjson.dumps(body) + b"\n\n"
        return last + DONE

    def whole(self, reply: Reply) -> bytes:
        """The reply as one JSON object."""
        choice = {
            "index": 0,
            "message": reply.message | {"refusal": None},
            "logprobs": self._take_logprobs(),
            "finish_reason": reply.finish_reason,
        }
        return orjson.dumps(self._head | {"choices": [choice], "usage": _usage(reply), "openclaw": _note(reply)})

    def _event(self, delta: Delta, finish_reason: bytes) -> bytes:
        choices = b',"choices":[{"index":0,"delta":' + orjson.dumps(delta)
        if self._token_text is not None:
            choices += b',"logprobs":' + orjson.dumps(self._take_logprobs())
        return self._chunk_head + choices + b',"finish_reason":' + finish_reason + b"}]}\n\n"

    def _take_logprobs(self) -> dict[str, Any] | None:
        if self._token_text is None:
            return None
        entries, self._waiting = self._waiting, []
        return {"content": entries}

    def _entries(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> list[dict[str, Any]]:
        assert self._token_text is not None
        spelt = map(self._token_text, token_ids)
        return [
            {"token": text, "logprob": logprob, "bytes": raw, "top_logprobs": ()}
            for (text, raw), logprob in zip(spelt, logprobs, strict=True)
        ]


def _usage(reply: Reply) -> dict[str, int]:
    """Exact counts of token ids: clients decide by them when to compact their history."""
    return {
        "prompt_tokens": reply.num_prompt_tokens,
        "completion_tokens": reply.num_reply_tokens,
        "total_tokens": reply.num_prompt_tokens + reply.num_reply_tokens,
    }


def _note(reply: Reply) -> dict[str, str]:
    """The turn's id and capture outcome."""
    return {"turn": reply.turn_id, "capture": reply.capture}


def error_event(error_body: bytes) -> bytes:
    """The event that ends a failed stream; the connection is closed after it."""
    return b"data: " + error_body + b"\n\n"
