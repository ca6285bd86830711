"""Keeps the server's own engine running: started in the background, started again when it dies, ended with the server.

    start ─▶ ready ─▶ dies ─▶ start …        more than MAX_RESTARTS in RESTART_WINDOW_S: gives up, and the server ends

Requests that have not begun wait in the engine pool meanwhile. A restarted engine serves the model as it was given
(policy version 0) until somebody publishes newer weights to it; its tokens are labelled so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from slime.engines.launch import EngineProcess
from slime.errors import EngineUnavailable

log = logging.getLogger(__name__)

MAX_RESTARTS, RESTART_WINDOW_S = 5, 600.0
_PROGRESS_EVERY_S = 5.0


class EngineSupervisor:
    """Runs one engine.

    Args:
        start: starts it and returns when it generates; called again after each death.
    """

    def __init__(self, start: Callable[[], Awaitable[EngineProcess]]) -> None:
        self._start = start
        self._deaths: deque[float] = deque(maxlen=MAX_RESTARTS)

    async def run(self) -> None:
        """Until cancelled. Raises EngineUnavailable when the engine does not start, or dies again and again."""
        while True:
            process = await self._start_with_progress()
            try:
                status = await process.wait()
            finally:
                await process.stop()
            log.error("engine died status=%d log=%s", status, process.log_path)
            now = time.monotonic()
            if len(self._deaths) == MAX_RESTARTS and now - self._deaths[0] < RESTART_WINDOW_S:
                raise EngineUnavailable(
                    f"the engine died {MAX_RESTARTS + 1} times in {RESTART_WINDOW_S:g} s; see {process.log_path}"
                )
            self._deaths.append(now)

    async def _start_with_progress(self) -> EngineProcess:
        began = time.monotonic()
        starting = asyncio.ensure_future(self._start())
        try:
            while not starting.done():
                await asyncio.wait([starting], timeout=_PROGRESS_EVERY_S)
                if not starting.done():
                    log.info("engine starting seconds=%.0f", time.monotonic() - began)
            process = starting.result()
        except asyncio.CancelledError:
            starting.cancel()
            await asyncio.wait([starting], timeout=_PROGRESS_EVERY_S)
            raise
        log.info("engine ready url=%s pid=%d seconds=%.1f", process.url, process.pid, time.monotonic() - began)
        return process
