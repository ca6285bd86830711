"""Which version of whose adapter answers a request: a client's view of what its engine has loaded.

    request for `ada` ─ newest ─▶ `ada@7`, or the base while she has none ─▶ answer, all of it made by version 7
    published `ada` 8 ─ load ada@8 ─▶ new requests ─▶ unload ada@6, which no request can have been sent to any more

The engine's list is asked for again when what is known of it is older than a moment: one request does so for all
others of that moment, and a publication is seen a moment later at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

FRESH_S = 0.02
NUM_KEPT = 2
"""Versions of an adapter that stay loaded: the newest, and the one that a request may be on its way to."""

Loaded = dict[str, list[int]]
"""Versions by adapter, oldest first."""


class AdapterVersions:
    """What is loaded in one engine, as of a moment ago.

    Args:
        ask: fetches it from the engine.
    """

    def __init__(self, ask: Callable[[], Awaitable[Loaded]]) -> None:
        self._ask = ask
        self._loaded: Loaded = {}
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def newest(self, name: str) -> int | None:
        """The version of an adapter that a request sent now is to name; None: there is none, the base answers."""
        async with self._lock:  # one of a moment's requests asks; to the others it is fresh then
            if time.monotonic() - self._asked_at > FRESH_S:
                await self.refresh()
        versions = self._loaded.get(name)
        return versions[-1] if versions else None

    async def refresh(self) -> Loaded:
        """Ask now."""
        began = time.monotonic()
        return self.learn(await self._ask(), began)

    def learn(self, loaded: Loaded, asked_at: float | None = None) -> Loaded:
        """Take in what the engine has said of itself."""
        self._asked_at = time.monotonic() if asked_at is None else asked_at
        self._loaded = loaded
        return loaded
