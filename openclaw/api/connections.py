"""Connection limits: bounds the size and duration of a request's head and the number of open connections.

    bytes ─▶ BoundedHttp ─▶ uvicorn's parser ─▶ a request with at most MAX_HEAD_BYTES of head, in HEAD_TIMEOUT_S
                 │
                 └─ Connections: above max_connections, the connection that has waited longest is closed

uvicorn bounds neither: one client could fill the memory with headers before its key is checked, or hold all descriptors
with unfinished requests. A waiting connection is idle, or still sending its head or body. Ordinary requests complete
within milliseconds, so they are not the ones closed. Chunk sizes, extensions and trailers count as head.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 10.0
_FRAMING_PER_BODY_BYTE = 8  # a body in chunks of one byte has six bytes of frame for each
_DESCRIPTORS_BESIDES = 256
_TOO_LARGE = "431 Request Header Fields Too Large"
_TOO_SLOW = "408 Request Timeout"
_BAD = "400 Bad Request"


class Connections:
    """Tracks a server's open connections and closes the longest waiting one when there are too many."""

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._num_open = 0
        self._waiting: dict[BoundedHttp, None] = {}  # without a complete request, longest waiting first

    def opened(self, connection: BoundedHttp) -> None:
        self._num_open += 1
        self._waiting[connection] = None
        if self._num_open > self._max:
            next(iter(self._waiting)).drop()

    def waits(self, connection: BoundedHttp) -> None:
        self._waiting[connection] = None

    def works(self, connection: BoundedHttp) -> None:
        self._waiting.pop(connection, None)

    def closed(self, connection: BoundedHttp) -> None:
        self._num_open -= 1
        self._waiting.pop(connection, None)


class _HeadTooLarge(Exception):
    pass


class BoundedHttp(HttpToolsProtocol):
    """One connection with a bounded request head."""

    def __init__(self, *args: Any, open_connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._all = open_connections
        self._timer: asyncio.TimerHandle | None = None
        self._is_head_due = True
        self._is_in_request = False
        self._num_bytes = 0
        self._num_body_bytes = 0
        self._refusal = _BAD

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.opened(self)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._all.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_request:
            if self._num_bytes > MAX_HEAD_BYTES + _FRAMING_PER_BODY_BYTE * self._num_body_bytes:
                self._refuse(_TOO_LARGE)
                return
        else:
            self._num_bytes = 0
        if self._is_head_due and self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        self._is_in_request = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_head_due = False
        self._stop_timer()
        if len(self.url) + sum([len(name) + len(value) for name, value in self.headers]) > MAX_HEAD_BYTES:
            self._refusal = _TOO_LARGE
            raise _HeadTooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_request = False
        self._num_bytes = self._num_body_bytes = 0
        self._all.works(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._is_head_due = True
        self._all.waits(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal)

    def drop(self) -> None:
        """Make room for another connection."""
        self._all.works(self)
        self.transport.close()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(_TOO_SLOW)

    def _refuse(self, status: str) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode())
            self.transport.close()


def room_for(max_connections: int) -> int:
    """The connections that the open-file limit allows, each with one to an engine; raises the soft limit if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + _DESCRIPTORS_BESIDES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = max(16, min(max_connections, (soft - _DESCRIPTORS_BESIDES) // 2))
    if room < max_connections:
        log.warning("open-file limit %d allows only %d connections; raise it with ulimit -n", soft, room)
    return room
