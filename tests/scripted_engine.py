"""The scripted engine in this process: the client of every engine, which calls the application instead of a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from slime.engines.client import ConnectionLost, HttpEngine
from slime.engines.dialect.reading import read_error
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.script import DEFAULT_REPLIES, ReplyFunction, Script
from slime.engines.scripted.server import ScriptedApp

Sent = asyncio.Queue[Any]
"""Messages of an application, then None."""


class ScriptedEngine(HttpEngine):
    """A `protocols.Engine` that says its script.

    >>> engine = ScriptedEngine(["Hello.", "Goodbye."], token_delay_s=0.01)
    """

    def __init__(
        self,
        replies: ReplyFunction | Sequence[str] = DEFAULT_REPLIES,
        *,
        model_dir: Path | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are those of `ScriptedCore`."""
        super().__init__("scripted:", pause_mode=None)
        self.core = ScriptedCore(Script(replies, model_dir), model_path=str(model_dir or ""), **settings)
        self.faults = self.core.faults
        self._application = ScriptedApp(self.core)

    async def close(self) -> None:
        await self.core.stop()
        await super().close()

    @contextlib.asynccontextmanager
    async def _sent(
        self, path: str, body: bytes | None, timeout_s: float, stall_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        received: Sent = asyncio.Queue()
        received.put_nowait({"type": "http.request", "body": body or b""})
        sent: Sent = asyncio.Queue()
        method = "GET" if body is None else "POST"
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
        serving = asyncio.ensure_future(self._application(scope, received.get, sent.put))
        serving.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            start = await sent.get()
            if start is None:
                serving.result()
                raise ConnectionLost("the engine dropped the connection")
            if start["status"] != 200:
                raise read_error(start["status"], b"".join([chunk async for chunk in _bodies(sent)]))
            yield _bodies(sent)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def _bodies(sent: Sent) -> AsyncIterator[bytes]:
    while (message := await sent.get()) is not None:
        yield message.get("body", b"")
        if not message.get("more_body"):
            return
    raise ConnectionLost("the engine dropped the connection")
