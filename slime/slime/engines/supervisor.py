"""Keeps a process running: started, started again when it dies, given up when it dies too often or refuses to start.

    start ─▶ works ─▶ dies ─▶ start …        a signal while it starts is a death like any other (the machine ran out of
      │                                      memory, it was killed); an exit of its own is a refusal, and final
      └─▶ refuses: EngineUnavailable         more than MAX_RESTARTS in RESTART_WINDOW_S: EngineUnavailable

What runs, where, and how one knows that it works is the caller's: the server starts its own engine so, and the cluster
its engines and the server, each held by an actor.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from slime.errors import EngineKilled, EngineUnavailable

log = logging.getLogger(__name__)

MAX_RESTARTS, RESTART_WINDOW_S = 10, 600.0


class Supervisor:
    """Runs one process.

    Args:
        name: for the log: `engine 0`, `server`.
        start: starts it and returns when it does its work. Raises EngineKilled when something ended it before,
            EngineUnavailable when it will not start.
        wait: returns when it has ended; what it returns says how, for the log.

    >>> supervisor = Supervisor("engine", start, wait)
    >>> await supervisor.start()      # it works now
    >>> await supervisor.supervise()  # until cancelled
    """

    def __init__(self, name: str, start: Callable[[], Awaitable[None]], wait: Callable[[], Awaitable[str]]) -> None:
        self._name = name
        self._start = start
        self._wait = wait
        self._deaths: deque[float] = deque(maxlen=MAX_RESTARTS)

    async def start(self) -> None:
        """Returns when it works. Raises EngineUnavailable when it does not start, or is killed again and again."""
        while True:
            try:
                return await self._start()
            except EngineKilled as error:
                self._died(str(error))

    async def supervise(self) -> None:
        """Start it again whenever it dies, until cancelled. Raises as `start`."""
        while True:
            self._died(await self._wait())
            await self.start()

    def _died(self, how: str) -> None:
        log.error("%s died, starting it again: %s", self._name, how)
        now = time.monotonic()
        if len(self._deaths) == MAX_RESTARTS and now - self._deaths[0] < RESTART_WINDOW_S:
            raise EngineUnavailable(f"{self._name} died {MAX_RESTARTS + 1} times in {RESTART_WINDOW_S:g} s: {how}")
        self._deaths.append(now)
