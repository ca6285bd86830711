"""A scripted OpenAI-compatible server with fault injection: a judge for tests, demos and dry runs.

POST /v1/chat/completions ─▶ script(Asked) ─▶ a text: answered   a Fault: gone wrong, and counted
GET  /v1/models           ─▶ one model
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


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
        self._app = Starlette(
            routes=[Route("/v1/models", self._models), Route("/v1/chat/completions", self._answer, methods=["POST"])]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _answer(self, request: Request) -> Response:
        body = await request.json()
        if refused := sorted(self._refuses & body.keys()):
            return _error(400, f"unsupported parameter: {refused[0]}", refused[0])
        asked = Asked(len(self.asked), body, request.headers.get("authorization", "").removeprefix("Bearer "))
        self.asked.append(asked)
        line = self._script(asked)
        if not isinstance(line, Fault):
            return JSONResponse(self._completion(line, "stop"))
        self.fired[line] += 1
        return await self._fail(line)

    async def _fail(self, fault: Fault) -> Response:
        match fault:
            case Fault.HANG:
                await asyncio.Event().wait()  # until the server is stopped or the client has left
            case Fault.CUT:
                return Response(b'{"choices": [', headers={"content-length": "100000"}, media_type="application/json")
            case Fault.BAD_JSON:
                return Response(b"<html>gateway</html>", media_type="application/json")
            case Fault.BAD_SHAPE:
                return JSONResponse({"choices": [{"text": "old times"}]})
            case Fault.UNFINISHED:
                return JSONResponse(self._completion("It seems to me \\boxed{1} that", "length"))
        headers = {"retry-after": "0"} if fault is Fault.HTTP_429 else {}
        return _error(int(fault.removeprefix("http_")), f"injected {fault}", None, headers)

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


def _error(status: int, message: str, param: str | None, headers: Mapping[str, str] | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return JSONResponse({"error": error}, status, headers)
