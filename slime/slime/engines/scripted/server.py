"""The dialect over HTTP for a `ScriptedCore`: bare ASGI, because it stands behind a benchmark of the server.

Besides the dialect there is /faults: POST {"fault": "cut", "times": 2, "after": 1} plans some, GET tells which fired.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from slime.engines import dialect
from slime.engines.dialect import GenerateCall
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.faults import Fault, InjectedCut, InjectedHttpError
from slime.errors import EngineRejected, EngineUnavailable, nearest

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, bytes]

_JSON = (b"content-type", b"application/json")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class ScriptedApp:
    """The ASGI application."""

    def __init__(self, core: ScriptedCore) -> None:
        self.core = core
        self._posts: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "/update_weights_from_disk": self._update_weights,
            "/load_lora_adapter": self._load_adapter,
            "/unload_lora_adapter": self._unload_adapter,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/abort_request": self._abort,
            "/flush_cache": self._flush_cache,
            "/faults": self._plan_fault,
        }
        self._gets: dict[str, Callable[[], Answer]] = {
            "/health": lambda: (200, b""),
            "/health_generate": lambda: (200, b""),
            "/model_info": self._model_info,
            "/server_info": self._server_info,
            "/v1/models": lambda: (200, orjson.dumps(dialect.model_list(core.model_path, core.adapters))),
            "/flush_cache": lambda: self._flush_cache({}),
            "/faults": self._list_faults,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        path, method = scope["path"], scope["method"]
        raw = await _read_body(receive)
        if path == "/generate" and method == "POST":
            await self._generate(raw, receive, send)
        elif method == "POST" and path in self._posts:
            try:
                status, body = self._posts[path](dialect.parse_json(raw))
            except EngineRejected as error:
                status, body = error.status, dialect.error_body(str(error))
            await _send_whole(send, status, body)
        elif method == "GET" and path in self._gets:
            await _send_whole(send, *self._gets[path]())
        else:
            is_known = path == "/generate" or path in self._posts or path in self._gets
            await _send_whole(send, *((405, b'{"detail":"Method Not Allowed"}') if is_known else _NOT_FOUND))

    # ── generating ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _generate(self, raw: bytes, receive: Receive, send: Send) -> None:
        body: dict[str, Any] = {}
        try:
            body = dialect.parse_json(raw)
            call = self.core.open(body)
        except EngineRejected as error:
            if body.get("stream"):
                await _send_events(send, [dialect.error_body(str(error))])
            else:
                await _send_whole(send, error.status, dialect.error_body(str(error)))
            return
        work = self._stream(call, send) if call.stream else self._answer(call, send)
        if self.core.is_instant(call):
            await work
        else:
            await _while_connected(work, receive)

    async def _answer(self, call: GenerateCall, send: Send) -> None:
        try:
            async with contextlib.aclosing(self.core.payloads(call)) as payloads:
                async for payload in payloads:
                    await _send_whole(send, 200, payload)
        except EngineUnavailable as error:
            await _send_whole(send, 503, _unavailable(str(error)))
        except InjectedHttpError as error:
            await _send_whole(send, error.status, dialect.error_body(str(error)))
        except InjectedCut:
            # More is promised than comes; the server closes the connection when the application leaves like this.
            await send(
                {"type": "http.response.start", "status": 200, "headers": [_JSON, (b"content-length", b"1000000")]}
            )
            await send({"type": "http.response.body", "body": b'{"text": "', "more_body": True})

    async def _stream(self, call: GenerateCall, send: Send) -> None:
        started = False
        try:
            async with contextlib.aclosing(self.core.payloads(call)) as payloads:
                async for payload in payloads:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
                    event = b"data: " + payload + b"\n\n"
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": dialect.DONE, "more_body": False})
        except EngineUnavailable as error:
            output = dialect.Output(0, self.core.version, finish_reason=dialect.aborted(str(error), 503))
            await _send_events(send, [orjson.dumps(dialect.answer(call, output))])
        except InjectedHttpError as error:
            await _send_whole(send, error.status, dialect.error_body(str(error)))
        except InjectedCut:
            pass  # leaving without a last body makes the server drop the connection

    # ── control ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _update_weights(self, body: dict[str, Any]) -> Answer:
        try:
            call = dialect.parse_update(body)
            self.core.update_weights(call)
        except EngineRejected as error:
            return 400, orjson.dumps({"success": False, "message": str(error), "num_paused_requests": 0})
        message = f"Succeeded to update model weights. Weight version updated to {body['weight_version']}."
        return 200, orjson.dumps({"success": True, "message": message, "num_paused_requests": 0})

    def _load_adapter(self, body: dict[str, Any]) -> Answer:
        return self._change_adapters(lambda: self.core.load_adapter(dialect.parse_load_adapter(body)))

    def _unload_adapter(self, body: dict[str, Any]) -> Answer:
        return self._change_adapters(lambda: self.core.unload_adapter(dialect.parse_unload_adapter(body)))

    def _change_adapters(self, change: Callable[[], None]) -> Answer:
        try:
            change()
        except EngineRejected as error:
            return 400, orjson.dumps(dialect.adapters_unchanged(str(error)))
        return 200, orjson.dumps(dialect.adapters_changed(self.core.adapters))

    def _pause(self, body: dict[str, Any]) -> Answer:
        self.core.pause(dialect.parse_pause(body))
        return 200, orjson.dumps({"message": "Generation paused successfully.", "status": "ok"})

    def _continue(self, body: dict[str, Any]) -> Answer:
        self.core.resume()
        return 200, orjson.dumps({"message": "Generation continued successfully.", "status": "ok"})

    def _abort(self, body: dict[str, Any]) -> Answer:
        self.core.abort(str(body.get("rid") or ""), everything=bool(body.get("abort_all")))
        return 200, b""

    def _flush_cache(self, body: dict[str, Any]) -> Answer:
        return 200, b"Cache flushed.\n"

    def _model_info(self) -> Answer:
        return 200, orjson.dumps(
            {
                "model_path": self.core.model_path,
                "served_model_name": self.core.model_path,
                "tokenizer_path": self.core.model_path,
                "is_generation": True,
                "weight_version": dialect.version_to_wire(self.core.version),
            }
        )

    def _server_info(self) -> Answer:
        return 200, orjson.dumps(
            {
                "model_path": self.core.model_path,
                "max_running_requests": self.core.max_running_requests,
                "max_queued_requests": self.core.max_queued_requests,
                "incremental_streaming_output": self.core.is_incremental,
                "context_length": self.core.script.vocabulary.context_len,
                "version": "scripted",
                "internal_states": [{"num_requests": self.core.num_requests}],
            }
        )

    def _plan_fault(self, body: dict[str, Any]) -> Answer:
        name = body.get("fault")
        if name not in set(Fault):
            raise EngineRejected(f"no fault {name!r}{nearest(str(name), Fault)}; there are {', '.join(Fault)}")
        self.core.faults.plan(Fault(name), int(body.get("times", 1)), int(body.get("after", 0)))
        return 200, b"{}"

    def _list_faults(self) -> Answer:
        faults = self.core.faults
        fired = {str(fault): times for fault, times in faults.fired.items()}
        return 200, orjson.dumps({"fired": fired, "num_pending": faults.num_pending})


_NOT_FOUND: Answer = (404, b'{"detail":"Not Found"}')


def _unavailable(message: str) -> bytes:
    return orjson.dumps({"object": "error", "message": message, "type": "503", "param": None, "code": 503})


async def _read_body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


async def _send_whole(send: Send, status: int, body: bytes) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_events(send: Send, payloads: list[bytes]) -> None:
    body = b"".join(b"data: " + payload + b"\n\n" for payload in payloads) + dialect.DONE
    await send({"type": "http.response.start", "status": 200, "headers": [_EVENTS]})
    await send({"type": "http.response.body", "body": body})


async def _while_connected(work: Awaitable[None], receive: Receive) -> None:
    """Do the work, unless the client leaves first."""
    working = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.ensure_future(watch())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
