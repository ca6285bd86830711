"""The HTTP side: SGLang's native routes over an `EngineService`.

/generate is plain ASGI, because it streams and has to notice when a client goes away; the rest are small
Starlette endpoints. Errors have SGLang's shapes: `{"error": {"message": …}}` for a request that is wrong,
`{"object": "error", …}` for one that could not be served.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import orjson
import transformers
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slime.engines.dialect import (
    DONE,
    aborted,
    adapters_changed,
    adapters_unchanged,
    error_body,
    model_list,
    parse_generate,
    parse_json,
    parse_load_adapter,
    parse_pause,
    parse_unload_adapter,
    parse_update,
    sse,
    version_to_wire,
)
from slime.engines.embedded.service import EngineOptions, EngineService
from slime.errors import EngineError, EngineRejected, EngineUnavailable, WeightsError

HEALTH_TIMEOUT_S = 20.0


def build_app(service: EngineService) -> Starlette:
    """The ASGI application; its lifespan starts and stops the engine."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.stop()

    routes = _Routes(service)
    post = ["POST", "PUT"]
    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/generate", Generate(service), methods=post),
            Route("/health", routes.health),
            Route("/health_generate", routes.health_generate),
            Route("/server_info", routes.server_info),
            Route("/get_server_info", routes.server_info),
            Route("/model_info", routes.model_info),
            Route("/get_model_info", routes.model_info),
            Route("/update_weights_from_disk", routes.update_weights_from_disk, methods=post),
            Route("/load_lora_adapter", routes.load_lora_adapter, methods=post),
            Route("/unload_lora_adapter", routes.unload_lora_adapter, methods=post),
            Route("/v1/models", routes.models),
            Route("/pause_generation", routes.pause_generation, methods=post),
            Route("/continue_generation", routes.continue_generation, methods=post),
            Route("/abort_request", routes.abort_request, methods=post),
            Route("/flush_cache", routes.flush_cache, methods=["GET", "POST"]),
        ],
    )


class Generate:
    """POST /generate, as one JSON answer or as server-sent events that end in `data: [DONE]`."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        is_stream = False
        try:
            parsed = parse_json(body)
            is_stream = bool(parsed.get("stream"))
            ticket = self._service.open(parse_generate(parsed, uuid.uuid4().hex, self._service.limits.vocab_size))
        except EngineError as error:
            await (_refuse_stream(send, error) if is_stream else _refuse(send, error))
            return
        answers = self._service.answers(ticket)
        work = asyncio.ensure_future(_stream(send, answers) if is_stream else _answer_once(send, answers))
        gone = asyncio.ensure_future(_disconnect(receive))
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()  # closes the answers, which aborts the request
        await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            work.result()


class _Routes:
    """The control endpoints."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._service.loop.is_alive else 503)

    async def health_generate(self, request: Request) -> Response:
        return Response(status_code=200 if await self._service.is_healthy(HEALTH_TIMEOUT_S) else 503)

    async def server_info(self, request: Request) -> Response:
        service, state = self._service, await self._service.state()
        options: EngineOptions = service.options
        return _json(
            {
                "model_path": service.model_path,
                "device": str(service.model.device),
                "dtype": str(service.model.dtype).removeprefix("torch."),
                "context_length": service.limits.context_len,
                "max_running_requests": options.max_running_requests,
                "max_queued_requests": options.max_queued_requests,
                "incremental_streaming_output": options.is_incremental,
                "weight_version": state["weight_version"],
                "lora_paths": service.adapters,
                "internal_states": [state],
                "version": f"openclaw-embedded transformers-{transformers.__version__}",
            }
        )

    async def model_info(self, request: Request) -> Response:
        service = self._service
        return _json(
            {
                "model_path": service.model_path,
                "tokenizer_path": service.options.model_path,
                "is_generation": True,
                "weight_version": version_to_wire(service.loop.version),
            }
        )

    async def update_weights_from_disk(self, request: Request) -> Response:
        try:
            call = parse_update(parse_json(await request.body()))
            await self._service.update_weights(call)
        except (EngineError, WeightsError) as error:
            return _json({"success": False, "message": str(error), "num_paused_requests": 0}, 400)
        message = f"Succeeded to update model weights. Weight version updated to {version_to_wire(call.version)}."
        return _json({"success": True, "message": message, "num_paused_requests": 0})

    async def load_lora_adapter(self, request: Request) -> Response:
        try:
            await self._service.load_adapter(parse_load_adapter(parse_json(await request.body())))
        except (EngineError, WeightsError) as error:
            return _json(adapters_unchanged(str(error)), 400)
        return _json(adapters_changed(self._service.adapters))

    async def unload_lora_adapter(self, request: Request) -> Response:
        try:
            await self._service.unload_adapter(parse_unload_adapter(parse_json(await request.body())))
        except EngineError as error:
            return _json(adapters_unchanged(str(error)), 400)
        return _json(adapters_changed(self._service.adapters))

    async def models(self, request: Request) -> Response:
        return _json(model_list(self._service.options.model_path, self._service.adapters))

    async def pause_generation(self, request: Request) -> Response:
        try:
            mode = parse_pause(parse_json(await request.body()))
        except EngineRejected as error:
            return _refusal(error)
        await self._service.pause(mode)
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: Request) -> Response:
        await self._service.resume()
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def abort_request(self, request: Request) -> Response:
        try:
            body = parse_json(await request.body())
        except EngineRejected as error:
            return _refusal(error)
        if body.get("abort_all"):
            self._service.abort_all()
        elif body.get("rid"):
            self._service.abort(str(body["rid"]))
        return Response(status_code=200)

    async def flush_cache(self, request: Request) -> Response:
        try:
            timeout_s = float(request.query_params.get("timeout", "0"))
        except ValueError:
            return _refusal(EngineRejected("timeout must be a number of seconds."))
        if await self._service.flush_cache(timeout_s):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Flush cache failed: requests are running or waiting.\n", status_code=400)


async def _answer_once(send: Send, answers: AsyncGenerator[dict[str, Any]]) -> None:
    async with contextlib.aclosing(answers):
        said = [said async for said in answers][-1]
    reason = said["meta_info"]["finish_reason"]
    status = reason.get("status_code") if reason["type"] == "abort" else None
    if status is None:
        await _respond(send, orjson.dumps(said), 200)
    else:
        await _respond(send, _unserved(reason["message"], status), status)


async def _stream(send: Send, answers: AsyncGenerator[dict[str, Any]]) -> None:
    await _start_stream(send)
    async with contextlib.aclosing(answers):
        async for said in answers:
            await send({"type": "http.response.body", "body": sse(said), "more_body": True})
    await send({"type": "http.response.body", "body": DONE})


async def _refuse(send: Send, error: EngineError) -> None:
    if isinstance(error, EngineUnavailable):
        await _respond(send, _unserved(str(error), 503), 503)
    else:
        await _respond(send, error_body(str(error)), _status(error))


async def _refuse_stream(send: Send, error: EngineError) -> None:
    """A refused stream is a stream: SGLang answers 200 and says so in its only event."""
    if isinstance(error, EngineUnavailable):
        reason = aborted(str(error), 503)
        said: dict[str, Any] = {"text": "", "output_ids": [], "meta_info": {"finish_reason": reason}}
    else:
        kind = {"type": "invalid_request_error", "code": _status(error), "retryable": False}
        said = {"error": {"message": str(error), **kind}}
    await _start_stream(send)
    await send({"type": "http.response.body", "body": sse(said) + DONE})


async def _start_stream(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


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


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _status(error: EngineError) -> int:
    return error.status if isinstance(error, EngineRejected) else 503


def _unserved(message: str, status: int) -> bytes:
    return orjson.dumps({"object": "error", "message": message, "type": str(status), "param": None, "code": status})


def _refusal(error: EngineRejected) -> Response:
    return Response(error_body(str(error)), status_code=error.status, media_type="application/json")


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


async def _respond(send: Send, body: bytes, status: int) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
