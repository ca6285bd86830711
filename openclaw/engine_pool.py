"""Several engines as one: a session stays with its engine, and a dead engine is passed over until it answers again.

    generate, stream ─▶ pick: the session's engine, else the least busy ─▶ HttpEngine
                          ▲                                                  │ EngineUnavailable
                          └── nothing has reached the client yet: again, ◀───┘
                              elsewhere or later, while patience lasts

A session stays where its keys and values are cached. A stream that has begun is never begun again somewhere else: what
was sent cannot be taken back, so its error goes to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from slime.engines.client import HttpEngine
from slime.errors import EngineError, EngineUnavailable
from slime.protocols import Delta, GenerateRequest
from slime.types import Completion

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a request may wait for an engine before its client is told to come back later."""
CHECK_EVERY_S = 1.0
PROBE_TIMEOUT_S = 10.0
FRESH_S = 2.0
"""A success this recent says that an engine is alive; it need not be asked."""
_MAX_SESSIONS = 20_000
_RETRY_AFTER_S = 5.0


@dataclass(slots=True, eq=False)
class _Member:
    engine: HttpEngine
    is_alive: bool = True  # until proved otherwise: a request finds out sooner than a probe
    num_requests: int = 0
    last_success: float = float("-inf")

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    def succeeded(self) -> None:
        self.last_success = time.monotonic()
        if not self.is_alive:
            self.is_alive = True
            log.info("engine answers again url=%s", self.engine.base_url)

    def failed(self, error: EngineError) -> None:
        if self.is_alive:
            self.is_alive = False
            log.warning("engine unavailable url=%s error=%s", self.engine.base_url, error)

    async def probe(self, timeout_s: float) -> bool:
        """Whether the engine generates a token now."""
        try:
            await self.engine.health(timeout_s)
        except EngineError as error:
            self.failed(error)
        else:
            self.succeeded()
        return self.is_alive


class EnginePool:
    """Generates on whichever engine fits. Start it in the event loop that uses it, and close it there."""

    def __init__(self, engines: Sequence[HttpEngine], *, patience_s: float = PATIENCE_S) -> None:
        self._members = [_Member(engine) for engine in engines]
        self.patience_s = patience_s
        self._homes: OrderedDict[str, _Member] = OrderedDict()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._watch_members())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch], timeout=CHECK_EVERY_S)
        for member in self._members:
            await member.engine.close()

    async def generate(self, request: GenerateRequest, session_id: str) -> Completion:
        """Sample a whole reply. Raises EngineUnavailable when no engine could within the pool's patience."""
        search = _Search(self, request, session_id)
        while True:
            member = await search.member()
            try:
                with member.busy():
                    completion = await member.engine.generate(search.attempt())
                if completion.finish_reason == "abort":
                    raise EngineUnavailable("the engine aborted the reply")
            except EngineUnavailable as error:
                await search.failed(member, error)
            else:
                member.succeeded()
                return completion

    async def stream(self, request: GenerateRequest, session_id: str) -> AsyncGenerator[Delta, None]:
        """Sample a reply delta by delta; closing the iterator aborts it. Errors as `generate`, also after it began."""
        search = _Search(self, request, session_id)
        while True:
            member = await search.member()
            has_begun = False
            try:
                with member.busy():
                    async with contextlib.aclosing(_generator(member.engine.stream(search.attempt()))) as deltas:
                        async for delta in deltas:
                            if delta.finish_reason == "abort":
                                raise EngineUnavailable("the engine aborted the reply")
                            has_begun = True
                            member.last_success = time.monotonic()
                            yield delta
            except EngineUnavailable as error:
                if has_begun:
                    member.failed(error)
                    raise
                await search.failed(member, error)
            else:
                member.succeeded()
                return

    async def is_ready(self) -> bool:
        """Whether some engine generates: one that did just now, or one that does when asked."""
        recent = time.monotonic() - FRESH_S
        if any(member.is_alive and member.last_success > recent for member in self._members):
            return True
        return any(await asyncio.gather(*(member.probe(FRESH_S) for member in self._members)))

    def pick(self, session_id: str, avoided: Collection[_Member] = ()) -> _Member | None:
        """The engine for a request of this session now; None while none is alive that is not to be avoided."""
        home = self._homes.get(session_id)
        if home is not None and home.is_alive and home not in avoided:
            self._homes.move_to_end(session_id)
            return home
        usable = [member for member in self._members if member.is_alive and member not in avoided]
        if not usable:
            return None
        chosen = min(usable, key=lambda member: member.num_requests)
        if home is None or not home.is_alive:  # one that is only full keeps its sessions
            self._homes[session_id] = chosen
            if len(self._homes) > _MAX_SESSIONS:
                self._homes.popitem(last=False)
        return chosen

    async def _watch_members(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            stale = time.monotonic() - FRESH_S
            probed = [member for member in self._members if not member.is_alive or member.last_success < stale]
            await asyncio.gather(*(member.probe(PROBE_TIMEOUT_S) for member in probed))


class _Search:
    """The way of one request to an engine that takes it."""

    def __init__(self, pool: EnginePool, request: GenerateRequest, session_id: str) -> None:
        self._pool = pool
        self._request = request
        self._session_id = session_id
        self._deadline = time.monotonic() + pool.patience_s
        self._num_failures = 0
        self._refused: set[_Member] = set()  # since the last pause
        self._last_error: EngineUnavailable | None = None

    async def member(self) -> _Member:
        """The engine to try next; waits for one to come back, up to the deadline."""
        while (member := self._pool.pick(self._session_id, self._refused)) is None:
            await self._pause(min(0.05 * 2**self._num_failures, 1.0))
        return member

    def attempt(self) -> GenerateRequest:
        """The request under a name of its own: the engine may not be done with the last attempt."""
        if not self._num_failures:
            return self._request
        return replace(self._request, request_id=f"{self._request.request_id}-{self._num_failures}")

    async def failed(self, member: _Member, error: EngineUnavailable) -> None:
        """Nothing has reached the client. An engine that refused may only be full: one that is out fails a probe."""
        self._num_failures += 1
        self._last_error = error
        self._refused.add(member)
        log.info("request failed on engine url=%s error=%s", member.engine.base_url, error)
        await member.probe(FRESH_S)

    async def _pause(self, seconds: float) -> None:
        if time.monotonic() + seconds > self._deadline:
            reason = self._last_error or "none answers"
            raise EngineUnavailable(f"no engine took the request: {reason}", _RETRY_AFTER_S)
        await asyncio.sleep(seconds)
        self._refused.clear()


def _generator(deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta, None]:
    """Engines stream by async generators, which is what can be closed; the protocol only says iterator."""
    assert isinstance(deltas, AsyncGenerator)
    return deltas
