"""The HTTP side of our engines: SGLang's native routes over whatever generates.

    POST /generate ─ parse_generate ─▶ EngineCore.admit ─▶ answers ─▶ one JSON, or server-sent events up to [DONE]
    the other routes ─▶ Starlette ─▶ a method of the core each

A client that leaves ends its request. Errors have SGLang's shapes: `{"error": {"message": …}}` for a request that is
wrong, `{"object": "error", …}` for one that could not be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slime.engines.core import EngineCore, Json
from slime.engines.dialect.answers import DONE, aborted, adapters_changed, error_body, model_list, sse
from slime.engines.dialect.requests import (
    AbortCall,
    Call,
    LoadAdapterCall,
    PauseCall,
    UnloadAdapterCall,
    UpdateCall,
    parse_generate,
    parse_json,
)
from slime.engines.dialect.versions import version_to_wire
from slime.errors import EngineError, EngineRejected, WeightsError

HEALTH_TIMEOUT_S = 20.0

_POST = ("POST", "PUT")
AnyCall = TypeVar("AnyCall", bound=Call)


class EngineApp:
    """The ASGI application of an engine; its lifespan starts and stops the core.

    Args:
        further: routes beside those of the dialect.

    >>> uvicorn.run(EngineApp(EngineService(options)))
    """

    def __init__(self, core: EngineCore[Any], further: Sequence[Route] = ()) -> None:
        self._core = core
        self._control = Starlette(lifespan=self._lifespan, routes=[*_routes(core), *further])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Generating is plain ASGI: it streams, and it is what every microsecond counts for.
        if scope["type"] != "http" or scope["path"] != "/generate":
            await self._control(scope, receive, send)
        elif scope["method"] in _POST:
            await self._generate(receive, send)
        else:
            await PlainTextResponse("Method Not Allowed", 405)(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._core.start()
        try:
            yield
        finally:
            await self._core.stop()

    async def _generate(self, receive: Receive, send: Send) -> None:
        raw = await _read_body(receive)
        if raw is None:
            return
        is_stream = False
        try:
            body = parse_json(raw)
            is_stream = bool(body.get("stream"))
            answers = self._core.admit(parse_generate(body, uuid.uuid4().hex, self._core.limits))
        except EngineError as error:
            return await _refuse(send, error, is_stream=is_stream)
        work = _stream(send, answers) if is_stream else _answer_once(send, answers)
        await (work if self._core.is_instant else _while_connected(work, receive))


def _routes(core: EngineCore[Any]) -> list[Route]:
    """The control endpoints."""

    async def health(request: Request) -> Response:
        return Response(status_code=200 if core.is_alive else 503)

    async def health_generate(request: Request) -> Response:
        return Response(status_code=200 if await core.is_healthy(HEALTH_TIMEOUT_S) else 503)

    async def server_info(request: Request) -> Response:
        return reply(await core.info())

    async def model_info(request: Request) -> Response:
        paths = {"model_path": core.model_path, "tokenizer_path": core.tokenizer_path}
        return reply({**paths, "is_generation": True, "weight_version": version_to_wire(core.version)})

    async def models(request: Request) -> Response:
        return reply(model_list(core.tokenizer_path, core.adapters))

    async def update_weights_from_disk(call: UpdateCall) -> Response:
        try:
            await core.update_weights(call)
        except (EngineError, WeightsError) as error:
            return reply({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        message = f"Succeeded to update model weights. Weight version updated to {call.weight_version}."
        return reply({"success": True, "message": message, "num_paused_requests": 0})

    async def load_lora_adapter(call: LoadAdapterCall) -> Response:
        return await changed(core.load_adapter(call))

    async def unload_lora_adapter(call: UnloadAdapterCall) -> Response:
        return await changed(core.unload_adapter(call))

    async def changed(change: Awaitable[None]) -> Response:
        try:
            await change
        except (EngineError, WeightsError) as error:
            return reply(adapters_changed(None, str(error)), 400)
        return reply(adapters_changed(core.adapters))

    async def pause_generation(call: PauseCall) -> Response:
        await core.pause(call.mode)
        return reply({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(request: Request) -> Response:
        await core.resume()
        return reply({"message": "Generation continued successfully.", "status": "ok"})

    async def abort_request(call: AbortCall) -> Response:
        if call.abort_all:
            core.abort_all()
        else:
            core.abort(call.rid)
        return Response(status_code=200)

    async def flush_cache(request: Request) -> Response:
        try:
            timeout_s = float(request.query_params.get("timeout", "0"))
        except ValueError:
            return refusal(EngineRejected("timeout must be a number of seconds."))
        if await core.flush_cache(timeout_s):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Flush cache failed: requests are running or waiting.\n", status_code=400)

    asked = {"health": health, "health_generate": health_generate, "v1/models": models}
    asked |= {"server_info": server_info, "get_server_info": server_info}
    asked |= {"model_info": model_info, "get_model_info": model_info}
    return [
        *(Route(f"/{path}", endpoint) for path, endpoint in asked.items()),
        posted(UpdateCall, update_weights_from_disk),
        posted(LoadAdapterCall, load_lora_adapter),
        posted(UnloadAdapterCall, unload_lora_adapter),
        posted(PauseCall, pause_generation),
        posted(AbortCall, abort_request),
        Route("/continue_generation", continue_generation, methods=_POST),
        Route("/flush_cache", flush_cache, methods=["GET", "POST"]),
    ]


def posted(kind: type[AnyCall], endpoint: Callable[[AnyCall], Awaitable[Response]]) -> Route:
    """A route that hands its endpoint the request it reads; a refusal is answered as SGLang does."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(kind.read(parse_json(await request.body())))
        except EngineRejected as error:
            return refusal(error)

    return Route(f"/{endpoint.__name__}", answer, methods=_POST)


def reply(content: Json, status: int = 200) -> Response:
    """An answer of JSON."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def refusal(error: EngineRejected) -> Response:
    """The answer to a request that is wrong."""
    return Response(error_body(str(error)), status_code=error.status, media_type="application/json")


async def _answer_once(send: Send, answers: AsyncGenerator[Json]) -> None:
    async with contextlib.aclosing(answers):
        said = [said async for said in answers][-1]
    reason = said["meta_info"]["finish_reason"]
    status = reason.get("status_code") if reason["type"] == "abort" else None
    if status is None:
        await respond(send, orjson.dumps(said))
    else:
        await respond(send, _unserved(reason["message"], status), status)


async def _stream(send: Send, answers: AsyncGenerator[Json]) -> None:
    is_started = False
    async with contextlib.aclosing(answers):
        async for said in answers:
            if not is_started:
                is_started = True
                await _start_stream(send)
            await send({"type": "http.response.body", "body": sse(said), "more_body": True})
    await send({"type": "http.response.body", "body": DONE})


async def _refuse(send: Send, error: EngineError, *, is_stream: bool) -> None:
    """A refused stream is a stream: SGLang answers 200 and says so in its only event."""
    status = error.status if isinstance(error, EngineRejected) else 503
    if not is_stream:
        body = error_body(str(error)) if isinstance(error, EngineRejected) else _unserved(str(error), status)
        return await respond(send, body, status)
    said: Json = {"text": "", "output_ids": [], "meta_info": {"finish_reason": aborted(str(error), status)}}
    if isinstance(error, EngineRejected):
        kind = {"type": "invalid_request_error", "code": status, "retryable": False}
        said = {"error": {"message": str(error), **kind}}
    await _start_stream(send)
    await send({"type": "http.response.body", "body": sse(said) + DONE})


def _unserved(message: str, status: int) -> bytes:
    return orjson.dumps({"object": "error", "message": message, "type": str(status), "param": None, "code": status})


async def _start_stream(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def respond(send: Send, body: bytes, status: int = 200) -> None:
    """A whole answer of JSON."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; None when the client went away before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _while_connected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, unless the client leaves first, which closes the answers and so aborts the request."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        working.cancel()  # nothing to one that is done
        await asyncio.gather(working, gone, return_exceptions=True)
    if not working.cancelled():
        working.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
