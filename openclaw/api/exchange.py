"""One HTTP exchange over raw ASGI: reads the body, sends or streams the response, detects disconnects.

    body ◀─ receive                    Answer: Opening, bytes, bytes, … Last, or Whole ─ send ─▶ frames

These four are all that the hot path needs of a web framework; each is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import orjson
from slime.chat.nesting import MAX_DEPTH, is_too_deep

from openclaw.api.admission import GRACE_S, Body
from openclaw.api.errors import ApiError, as_api_error, bad_request

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

MAX_BODY_BYTES = 16 * 1024 * 1024
_LONG_BYTES, _MAX_CONTAINERS, _MAX_VALUES = 65_536, 32_000, 200_000
_STEP_BYTES, _STEP_ITEMS = 1 << 20, 4_096
WRITE_TIMEOUT_S = 60.0
"""How long a client may leave its receive window full before it counts as disconnected."""
KEEP_ALIVE_S = 10.0
"""How long a stream may be silent before a comment is sent, so that proxies do not time out on a slow reply."""
_LOOK_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class Whole:
    """A response that is not streamed."""

    body: bytes
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Opening:
    """Begins a stream of server-sent events; the headers are sent with the first event, so earlier errors keep theirs.

    Attributes:
        error_event: turns the JSON body of a later error into the event that ends the stream.
    """

    headers: Headers
    error_event: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Last:
    """The chunk that ends a stream; only then does a client take the response as complete."""

    chunk: bytes


Answer = AsyncGenerator[Whole | Opening | bytes | Last, None]
"""What an endpoint yields: one `Whole`, or an `Opening`, stream chunks, and a `Last`."""


class ClientGone(Exception):
    """The client closed its connection, or stopped reading from it."""


class Exchange:
    """One request and its response.

    Attributes:
        headers: by lower-case name; the last value of a repeated name wins.
        num_hosts: number of Host headers.
        http_version: `1.1` or `1.0`.
        local_address: the server address that the connection reached.
        fixed_headers: sent with every response.
        is_started: whether status and headers were sent.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.num_hosts = sum([name == b"host" for name, _ in scope["headers"]])
        self.http_version: str = scope.get("http_version", "1.1")
        self.local_address: str = (scope.get("server") or ("",))[0]
        self.fixed_headers: list[tuple[bytes, bytes]] = []
        self.is_started = False
        self._last_write = time.monotonic()
        self._receive = receive
        self._send = send

    async def body(self, held: Body, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the request body. Raises ApiError: 413 too large, 408 too slow, 503 all bodies exceed their limit.

        Args:
            held: accounts for the body's memory.
        """
        if (declared := self.headers.get("content-length", "")).isdigit() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        try:
            async with asyncio.timeout(GRACE_S) as deadline:
                event = await self._receive()
                parts = [self._checked(event)]
                if event.get("more_body"):
                    held.arrives(deadline)
                size = len(parts[0])
                held.grew(size)
                while event.get("more_body"):
                    event = await self._receive()
                    parts.append(self._checked(event))
                    held.grew(len(parts[-1]))
                    size += len(parts[-1])
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                held.is_whole()
                return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise held.late() from None

    def _checked(self, event: Event) -> bytes:
        if event["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = event.get("body", b"")
        return body

    async def answer(
        self, status: int, body: bytes, headers: Headers = (), content_type: bytes = b"application/json"
    ) -> None:
        """Send a complete response."""
        self.is_started = True
        fixed = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*fixed, *self.fixed_headers, *headers]}
        )
        await self._write({"type": "http.response.body", "body": body})

    async def send(self, answer: Answer) -> None:
        """Send a response as it is produced. A stream that fails ends with an error event and a closed connection.

        Raises:
            ClientGone: the client disconnected or stopped reading; `answer` was closed.
            Exception: whatever `answer` raises before the response has started.
        """
        stream: _Stream | None = None
        try:
            async with aclosing(answer), self.until_client_leaves():
                async for piece in answer:
                    if isinstance(piece, Opening):
                        stream = _Stream(self, piece)
                    elif isinstance(piece, Whole):
                        await self.answer(200, piece.body, piece.headers)
                    else:
                        assert stream is not None, "an answer is whole, or begins with its opening"
                        await stream.push(piece)
        except ClientGone:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if stream is None or not self.is_started:
                raise
            log.warning("stream failed path=%s error=%s", self.path, error or type(error).__name__)
            await self.push(stream.opening.error_event(as_api_error(error).body()))
        finally:
            if stream is not None:
                stream.close()

    async def start_stream(self, headers: Headers = ()) -> None:
        """Send status 200 and the headers of an event stream."""
        self.is_started = True
        fixed = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*fixed, *self.fixed_headers, *headers]}
        )

    async def push(self, chunk: bytes) -> None:
        """Send one chunk of a stream. Without a final `end` the connection is cut, so clients see it as incomplete."""
        await self._write({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self, chunk: bytes) -> None:
        """Send the last chunk of a stream."""
        await self._write({"type": "http.response.body", "body": chunk})

    def idle_s(self) -> float:
        """Seconds since the last write."""
        return time.monotonic() - self._last_write

    async def _write(self, event: Event) -> None:
        self._last_write = time.monotonic()
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._send(event)
        except TimeoutError:
            raise ClientGone from None

    def until_client_leaves(self) -> _UntilClientLeaves:
        """An async context that cancels its block and raises `ClientGone` when the client disconnects."""
        return _UntilClientLeaves(self._receive)


class _Stream:
    """Sends the chunks of a stream, and keep-alive comments between them."""

    def __init__(self, exchange: Exchange, opening: Opening) -> None:
        self.opening = opening
        self._exchange = exchange
        self._comments = asyncio.get_running_loop().create_task(self._comment())

    async def push(self, piece: bytes | Last) -> None:
        if isinstance(piece, Last):
            self.close()
        if not self._exchange.is_started:
            await self._exchange.start_stream(self.opening.headers)
        await (self._exchange.end(piece.chunk) if isinstance(piece, Last) else self._exchange.push(piece))

    async def _comment(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            if self._exchange.idle_s() >= KEEP_ALIVE_S:
                with suppress(ClientGone):  # the next chunk raises it
                    await self.push(b": keep-alive\n\n")

    def close(self) -> None:
        self._comments.cancel()


class _UntilClientLeaves:
    """Watches for a disconnect, starting only after `_LOOK_AFTER_S`: most responses are done by then."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self._has_left = False

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = loop.call_later(_LOOK_AFTER_S, self._look)

    def _look(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._wait())
        self._watch.add_done_callback(self._on_event)

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":  # the body has been read
            pass

    def _on_event(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled() and watch.exception() is None and self._task is not None:
            self._has_left = True
            self._task.cancel("client disconnected")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is not None:
            self._watch.remove_done_callback(self._on_event)
            self._watch.cancel()
        if self._has_left and self._task is not None and isinstance(error, asyncio.CancelledError):
            self._task.uncancel()
            raise ClientGone from None


class CutStreamFilter(logging.Filter):
    """Drops uvicorn's error about a stream that was cut off on purpose, after its error event."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "returned without completing response" not in record.getMessage()


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the request body is larger than {max_bytes // 1024} KiB", code="request_too_large")


def bearer_of(headers: Mapping[str, str]) -> str:
    """The token of `Authorization: Bearer …`, else that of `x-api-key`; empty when there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (token := token.strip()):
        return token
    return headers.get("x-api-key", "").strip()


async def json_object(raw: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object. Checks long bodies in steps and yields to the event loop between them.

    Raises: ApiError 400.
    """
    is_long = len(raw) > _LONG_BYTES
    if is_long:
        await _refuse_rubble(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request("the request body must be a JSON object")
    if not is_long and raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return value  # too few brackets to be nested deeper
    for part in _parts(value) if is_long else [value]:
        if is_long:
            await asyncio.sleep(0)
        if is_too_deep(part):
            raise bad_request(f"the request body is nested more than {MAX_DEPTH} levels deep")
    return value


def _parts(body: dict[str, Any]) -> Iterator[Any]:
    """The values of a body, long lists in pieces."""
    for value in body.values():
        if isinstance(value, list):
            yield from (value[start : start + _STEP_ITEMS] for start in range(0, len(value), _STEP_ITEMS))
        else:
            yield value


async def _refuse_rubble(raw: bytes) -> None:
    """Refuse a long body of very many small values before parsing it; prose has about one comma in 60 characters."""
    num_containers = num_values = 0
    for start in range(0, len(raw), _STEP_BYTES):
        end = start + _STEP_BYTES
        num_containers += raw.count(b"[", start, end) + raw.count(b"{", start, end)
        num_values += raw.count(b",", start, end)
        if num_containers > _MAX_CONTAINERS or num_values > _MAX_VALUES:
            raise bad_request(
                f"the request body holds more than {_MAX_CONTAINERS:,} lists and objects, or {_MAX_VALUES:,} values"
            )
        await asyncio.sleep(0)
