"""An OpenAI-compatible server that says what it was told to, faults included: a judge for tests, demos and dry runs.

POST /v1/chat/completions ─▶ script(Asked) ─▶ a text: answered   a Fault: gone wrong, and counted
GET  /v1/models           ─▶ one model
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Fault(enum.StrEnum):
    """What can go wrong with one request."""

    HTTP_400 = "http_400"  # refused for good
    HTTP_401 = "http_401"  # the key is wrong
    HTTP_429 = "http_429"  # too many requests, with a Retry-After
    HTTP_500 = "http_500"
    HTTP_503 = "http_503"
    HANG = "hang"  # accepted, never answered
    CUT = "cut"  # the connection drops halfway through the answer
    BAD_JSON = "bad_json"  # status 200 and no JSON
    BAD_SHAPE = "bad_shape"  # status 200 and JSON that is no chat completion
    UNFINISHED = "unfinished"  # the answer was cut off by its length limit


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for an answer.

    Attributes:
        number: how many came before it.
        body: as it was sent: `model`, `messages`, `max_tokens`, …
        api_key: the bearer token.
    """

    number: int
    body: dict[str, Any]
    api_key: str


Line = str | Fault
Script = Callable[[Asked], Line]


class ScriptedJudgeApi:
    """The ASGI application.

    >>> app = ScriptedJudgeApi([Fault.HTTP_500, "Fine. \\\\boxed{1}"])    # an error, then that answer for ever

    Args:
        script: gives the answer to each request; or lines in order, the last of them again and again.
        refuses: settings this server does not take, as some models do: `{"max_tokens"}`.

    Attributes:
        asked: every request for an answer so far.
        fired: how often each fault happened.
    """

    def __init__(
        self, script: Script | Sequence[Line], *, model: str = "scripted-judge", refuses: frozenset[str] = frozenset()
    ) -> None:
        self.model = model
        self.asked: list[Asked] = []
        self.fired: Counter[Fault] = Counter()
        self._script = script if callable(script) else _in_order(script)
        self._refuses = refuses

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        raw = await _read_body(receive)
        if scope["path"] == "/v1/models":
            await _send(send, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        elif scope["path"] == "/v1/chat/completions":
            await self._answer(scope, orjson.loads(raw), send)
        else:
            await _send(send, 404, _error("no such endpoint", None))

    async def _answer(self, scope: MutableMapping[str, Any], body: dict[str, Any], send: Send) -> None:
        if refused := sorted(self._refuses & body.keys()):
            return await _send(send, 400, _error(f"unsupported parameter: {refused[0]}", refused[0]))
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        asked = Asked(len(self.asked), body, headers.get("authorization", "").removeprefix("Bearer "))
        self.asked.append(asked)
        line = self._script(asked)
        if not isinstance(line, Fault):
            return await _send(send, 200, self._completion(line, "stop"))
        self.fired[line] += 1
        await self._fail(line, send)

    async def _fail(self, fault: Fault, send: Send) -> None:
        match fault:
            case Fault.HTTP_400 | Fault.HTTP_401 | Fault.HTTP_429 | Fault.HTTP_500 | Fault.HTTP_503:
                headers = [(b"retry-after", b"0")] if fault is Fault.HTTP_429 else []
                await _send(send, int(fault.removeprefix("http_")), _error(f"injected {fault}", None), headers)
            case Fault.HANG:
                await asyncio.Event().wait()  # until the server is stopped or the client has left
            case Fault.CUT:
                await _start(send, 200, [(b"content-length", b"100000")])
                await send({"type": "http.response.body", "body": b'{"choices": [', "more_body": True})
            case Fault.BAD_JSON:
                await _start(send, 200, [])
                await send({"type": "http.response.body", "body": b"<html>gateway</html>"})
            case Fault.BAD_SHAPE:
                await _send(send, 200, {"choices": [{"text": "old times"}]})
            case Fault.UNFINISHED:
                await _send(send, 200, self._completion("It seems to me \\boxed{1} that", "length"))

    def _completion(self, text: str, finish_reason: str) -> dict[str, Any]:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
        return {
            "id": f"chatcmpl-{len(self.asked)}",
            "object": "chat.completion",
            "created": 0,
            "model": self.model,
            "choices": [choice],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }


def _in_order(lines: Sequence[Line]) -> Script:
    if not lines:
        raise ValueError("a script needs at least one line")
    return lambda asked: lines[min(asked.number, len(lines) - 1)]


def _error(message: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": None}}


async def _read_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return body


async def _start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    fixed = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": fixed + headers})


async def _send(send: Send, status: int, body: dict[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    raw = orjson.dumps(body)
    await _start(send, status, [(b"content-length", str(len(raw)).encode()), *headers])
    await send({"type": "http.response.body", "body": raw})
