"""The server as an ASGI application: which path is answered by what, who may ask, and how many at once.

    GET  /v1/models            what is served
    POST /v1/chat/completions  a reply of the model: a row of `ENDPOINTS`, which `openclaw.api.generation` generates
    POST /v1/feedback          what a person says of a reply, with the admin key
    OPTIONS                    a page that is allowed to use the server asks what it may send
    GET  /healthz              this process answers
    GET  /readyz               an engine generates and turns are kept, tried when asked and not just known
    HEAD /                     clients look whether anybody is there

Plain ASGI without a framework: at a thousand requests a second on one core there is no millisecond to give away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import orjson
from slime.errors import OpenClawError

from openclaw.api.admission import Bodies, Places
from openclaw.api.endpoints import chat_completions
from openclaw.api.endpoints.feedback import MAX_FEEDBACK_BYTES, serve_feedback
from openclaw.api.errors import ApiError, as_api_error
from openclaw.api.exchange import Answer, ClientGone, Exchange, Receive, Scope, Send, json_object
from openclaw.api.gate import Gate
from openclaw.api.generation import Generation, ServedModel
from openclaw.api.incoming import Incoming, caller_of
from openclaw.capture import Capture, capture_is_off
from openclaw.engine_pool import EnginePool

log = logging.getLogger(__name__)


class Endpoint(Protocol):
    """A wire format: reads a body as a `ChatRequest`, has `Generation` answer it, and writes what comes."""

    def answer(self, incoming: Incoming) -> Answer:
        """The answer to one request. Raises RequestError where the body is wrong."""
        ...


ENDPOINTS: dict[str, Callable[[Generation], Endpoint]] = {
    chat_completions.PATH: chat_completions.ChatCompletions,
}
"""What generates: a file of `openclaw/api/endpoints/` each."""

_OPEN_PATHS = ("/", "/healthz", "/readyz")
_METHODS = {
    "/v1/feedback": ("POST",),
    "/v1/models": ("GET", "HEAD"),
    "/healthz": ("GET", "HEAD"),
    "/readyz": ("GET", "HEAD"),
    "/": ("GET", "HEAD"),
}


MAX_FEEDBACK_AT_ONCE = 64
_MAX_SHOWN_PATH = 200


class App:
    """The application.

    Args:
        gate: who may ask for what.
        max_concurrent_requests: chats under way at once; more are refused.
        max_body_bytes: what the bodies of all requests may hold together.
    """

    def __init__(
        self,
        model: ServedModel,
        engines: EnginePool,
        capture: Capture,
        *,
        gate: Gate,
        max_concurrent_requests: int = 512,
        max_body_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self._model = model
        self._engines = engines
        self._capture = capture
        self._generation = Generation(model, engines, capture)
        self._endpoints = {path: make(self._generation) for path, make in ENDPOINTS.items()}
        self._methods = _METHODS | dict.fromkeys(ENDPOINTS, ("POST",))
        self._gate = gate
        self._places = Places(max_concurrent_requests)
        self._feedback_places = Places(MAX_FEEDBACK_AT_ONCE)
        self._bodies = Bodies(max_body_bytes)
        self._started_at = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"no {scope['type']} here")
        exchange = Exchange(scope, receive, send)
        try:
            await self._route(exchange)
        except ClientGone:
            pass
        except (Exception, asyncio.CancelledError) as error:
            if not isinstance(error, OpenClawError | asyncio.CancelledError):
                log.exception("request failed path=%s", exchange.path[:_MAX_SHOWN_PATH])
            if exchange.is_started:
                return  # an answer that cannot be finished: the connection is cut
            answer = as_api_error(error).with_traceback(None)  # its frames hold the body, and this one the error
            log.info("refused path=%s status=%d error=%s", exchange.path[:_MAX_SHOWN_PATH], answer.status, answer)
            await exchange.answer(answer.status, answer.body(), answer.headers())

    async def _route(self, exchange: Exchange) -> None:
        self._gate.check_source(exchange)
        path = exchange.path if exchange.path == "/" else exchange.path.rstrip("/")
        if path not in self._methods:
            raise ApiError(404, f"no endpoint {exchange.method} {exchange.path[:_MAX_SHOWN_PATH]}", code="unknown_url")
        if exchange.method == "OPTIONS" and "origin" in exchange.headers:
            return await exchange.answer(204, b"", self._gate.preflight())
        if exchange.method not in self._methods[path]:
            raise ApiError(405, f"{path} takes {' or '.join(self._methods[path])}, not {exchange.method}")
        if path == "/v1/feedback":
            if not self._gate.has_admin_key:
                raise capture_is_off()
            self._gate.check_admin_key(exchange)
        elif path not in _OPEN_PATHS:
            self._gate.check_key(exchange)
        if exchange.method == "POST":
            self._gate.check_format(exchange)
        if path in self._endpoints:
            await self._generate(exchange, self._endpoints[path])
        elif path == "/v1/feedback":
            self._feedback_places.check()
            with self._bodies.body() as held:
                raw = await exchange.body(held, MAX_FEEDBACK_BYTES)
                with self._feedback_places:
                    await serve_feedback(exchange, raw, self._capture)
        elif path == "/v1/models":
            await exchange.answer(200, self._models())
        elif path == "/readyz":
            await self._answer_ready(exchange)
        else:
            await exchange.answer(200, b'{"ok":true}')

    async def _generate(self, exchange: Exchange, endpoint: Endpoint) -> None:
        self._places.check()  # the body need not even be read
        with self._bodies.body() as held:
            raw = await exchange.body(held)
            with self._places:
                self._generation.check_size(len(raw))
                body = await json_object(raw)
                caller = caller_of(self._model.lora, exchange.headers, body)
                await exchange.send(endpoint.answer(Incoming(body, caller, len(raw))))

    def _models(self) -> bytes:
        model = {"id": self._model.name, "object": "model", "created": self._started_at, "owned_by": "openclaw"}
        return orjson.dumps({"object": "list", "data": [model | {"max_model_len": self._model.max_context}]})

    async def _answer_ready(self, exchange: Exchange) -> None:
        engine, store = await self._engines.is_ready(), await self._capture.is_writable()
        state = {
            "ready": engine and (store or self._capture.keeps_turns),
            "engine": engine,
            "store": store,
            "requests": self._places.num_taken,
            "turns_stored": self._capture.num_stored,
            "turns_failed": self._capture.num_failed,
            "turns_pending": self._capture.num_pending,
        }
        headers = [] if state["ready"] else [(b"retry-after", b"2")]
        await exchange.answer(200 if state["ready"] else 503, orjson.dumps(state), headers)
