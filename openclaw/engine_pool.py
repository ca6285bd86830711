"""Balances requests over several engines with session affinity, health checks and retries.

    generate, stream ─▶ pick: the session's engine, else the least busy ─▶ HttpEngine
                          ▲                                                  │ EngineUnavailable
                          └── nothing was sent to the client: retry on  ◀────┘
                              another engine or later, until the deadline

When an engine yields no token and answers no health check for `hung_s`, its requests are cancelled, and those that have
not started are retried elsewhere. A request on which healthy engines keep failing is refused after `MAX_FAULTS` tries.

Session affinity keeps a session on the engine that holds its KV cache. A stream that has started is never retried: its
tokens were sent already, so its error goes to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slime.engines.client import ConnectionLost, HttpEngine, NotReached
from slime.errors import EngineError, EngineFailed, EngineUnavailable
from slime.protocols import Delta, GenerateRequest
from slime.types import Completion

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a request may wait for an engine before it fails with 503 and Retry-After."""
CHECK_EVERY_S = 1.0
PROBE_TIMEOUT_S = 10.0
HUNG_S = 20.0
"""How long an engine may be silent before its requests are cancelled."""
MAX_FAULTS = 3
"""How often engines may fail on one request before that request is refused."""
FRESH_S = 2.0
"""An engine with a success this recent counts as alive without a probe."""
_MAX_SESSIONS = 20_000
_RETRY_AFTER_S = 5.0


@dataclass(slots=True, eq=False)
class _Call:
    """A request on an engine. `is_waiting`: its task awaits the engine, not the client."""

    task: asyncio.Task[Any]
    is_waiting: bool = True
    is_broken_off: bool = False

    def break_off(self) -> None:
        if not self.is_broken_off:
            self.is_broken_off = True
            if self.is_waiting:
                self.task.cancel()


@dataclass(slots=True, eq=False)
class _Member:
    engine: HttpEngine
    is_starting: bool = False  # silence is expected
    is_alive: bool = True  # optimistic: a request finds a failure sooner than a probe
    last_success: float = float("-inf")
    heard_at: float = field(default_factory=time.monotonic)  # any response, errors included
    calls: set[_Call] = field(default_factory=set)
    probing: asyncio.Task[bool] | None = None

    @property
    def num_requests(self) -> int:
        return len(self.calls)

    @contextlib.contextmanager
    def busy(self) -> Iterator[_Call]:
        """Track a call; raises EngineUnavailable in it when the engine hangs."""
        task = asyncio.current_task()
        assert task is not None
        call = _Call(task)
        self.calls.add(call)
        try:
            yield call
        except asyncio.CancelledError:
            if not call.is_broken_off:
                raise
            task.uncancel()
            raise self._hangs() from None
        finally:
            self.calls.discard(call)

    def after_pause(self, call: _Call) -> None:
        """Resume after the client took a delta: the call waits for the engine again."""
        if call.is_broken_off:
            raise self._hangs()
        call.is_waiting = True

    def _hangs(self) -> EngineUnavailable:
        return EngineUnavailable(f"engine {self.engine.base_url} hangs: no tokens and no health check response")

    def break_off_if_silent(self, hung_s: float) -> None:
        if not self.is_alive and self.calls and time.monotonic() - self.heard_at > hung_s:
            log.warning("engine hangs url=%s requests=%d", self.engine.base_url, len(self.calls))
            for call in list(self.calls):
                call.break_off()

    def heard(self) -> None:
        self.heard_at = self.last_success = time.monotonic()

    def succeeded(self) -> None:
        self.heard()
        if not self.is_alive:
            log.info("engine answers%s url=%s", "" if self.is_starting else " again", self.engine.base_url)
        self.is_alive, self.is_starting = True, False

    def failed(self, error: EngineError) -> None:
        if not isinstance(error, ConnectionLost | NotReached):
            self.heard_at = time.monotonic()
        if self.is_alive:
            self.is_alive = False
            level = logging.INFO if self.is_starting else logging.WARNING
            log.log(level, "engine unavailable url=%s error=%s", self.engine.base_url, error)

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
    """Routes requests to engines. Start and close it in the event loop that uses it.

    Args:
        are_starting: the engines are still loading; until an engine has answered, its silence is logged at INFO only.
    """

    def __init__(
        self,
        engines: Sequence[HttpEngine],
        *,
        patience_s: float = PATIENCE_S,
        hung_s: float = HUNG_S,
        are_starting: bool = False,
    ) -> None:
        self._hung_s = hung_s
        self._members = [_Member(engine, are_starting) for engine in engines]
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
            if member.probing is not None:
                member.probing.cancel()
            await member.engine.close()

    async def generate(self, request: GenerateRequest, session_id: str) -> Completion:
        """Sample a complete reply.

        Raises:
            EngineUnavailable: no engine succeeded before the deadline.
            EngineError: engines fail on this request repeatedly.
        """
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
        """Stream a reply's deltas; closing the iterator aborts it. Raises as `generate`, also after the first delta."""
        search = _Search(self, request, session_id)
        while True:
            member = await search.member()
            has_begun = False
            try:
                with member.busy() as call:
                    async with contextlib.aclosing(_generator(member.engine.stream(search.attempt()))) as deltas:
                        async for delta in deltas:
                            if delta.finish_reason == "abort":
                                raise EngineUnavailable("the engine aborted the reply")
                            has_begun = True
                            member.heard()
                            call.is_waiting = False
                            yield delta
                            member.after_pause(call)
            except EngineUnavailable as error:
                if has_begun:
                    member.failed(error)
                    raise
                await search.failed(member, error)
            else:
                member.succeeded()
                return

    async def is_ready(self) -> bool:
        """Whether any engine generates: by a recent success, else by a probe."""
        recent = time.monotonic() - FRESH_S
        if any(member.is_alive and member.last_success > recent for member in self._members):
            return True
        return any(await asyncio.gather(*(member.probe(FRESH_S) for member in self._members)))

    def pick(self, session_id: str, avoided: Collection[_Member] = ()) -> _Member | None:
        """The engine for this session's next request; None while every live engine is in `avoided`."""
        home = self._homes.get(session_id)
        if home is not None and home.is_alive and home not in avoided:
            self._homes.move_to_end(session_id)
            return home
        usable = [member for member in self._members if member.is_alive and member not in avoided]
        if not usable:
            return None
        chosen = min(usable, key=lambda member: member.num_requests)
        if home is None or not home.is_alive:  # an engine that is only full keeps its sessions
            self._homes[session_id] = chosen
            if len(self._homes) > _MAX_SESSIONS:
                self._homes.popitem(last=False)
        return chosen

    async def _watch_members(self) -> None:
        """Probe each engine in its own task, so that a hanging one does not delay the recovery of the others."""
        while True:
            await asyncio.sleep(min(CHECK_EVERY_S, self._hung_s / 4))
            stale = time.monotonic() - FRESH_S
            for member in self._members:
                is_probing = member.probing is not None and not member.probing.done()
                if not is_probing and (not member.is_alive or member.last_success < stale):
                    timeout_s = min(PROBE_TIMEOUT_S, self._hung_s / 2)
                    member.probing = asyncio.get_running_loop().create_task(member.probe(timeout_s))
                member.break_off_if_silent(self._hung_s)


class _Search:
    """The retry state of one request: attempts, failures, deadline."""

    def __init__(self, pool: EnginePool, request: GenerateRequest, session_id: str) -> None:
        self._pool = pool
        self._request = request
        self._session_id = session_id
        self._deadline = time.monotonic() + pool.patience_s
        self._num_failures = 0
        self._num_faults = 0
        self._refused: set[_Member] = set()  # since the last pause
        self._last_error: EngineUnavailable | None = None

    async def member(self) -> _Member:
        """The engine to try next; waits with exponential backoff until one is usable or the deadline passes."""
        while (member := self._pool.pick(self._session_id, self._refused)) is None:
            await self._pause(min(0.05 * 2**self._num_failures, 1.0))
        return member

    def attempt(self) -> GenerateRequest:
        """The request under a new id per attempt: the engine may still be running the previous one."""
        if not self._num_failures:
            return self._request
        return replace(self._request, request_id=f"{self._request.request_id}-{self._num_failures}")

    async def failed(self, member: _Member, error: EngineUnavailable) -> None:
        """Record a failure before anything was sent, and probe the engine: one that refused may only be full.

        Raises:
            EngineError: engines failed on this request `MAX_FAULTS` times, so the request is the cause.
        """
        self._num_failures += 1
        self._last_error = error
        self._refused.add(member)
        log.info("request failed on engine url=%s error=%s", member.engine.base_url, error)
        self._num_faults += isinstance(error, EngineFailed)
        if self._num_faults >= MAX_FAULTS:
            raise EngineError(f"engines failed on this request {self._num_faults} times, last: {error}")
        await member.probe(FRESH_S)

    async def _pause(self, seconds: float) -> None:
        if time.monotonic() + seconds > self._deadline:
            reason = self._last_error or "none responds"
            raise EngineUnavailable(f"no engine available: {reason}", _RETRY_AFTER_S)
        await asyncio.sleep(seconds)
        self._refused.clear()


def _generator(deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta, None]:
    """Narrows the protocol's iterator to the async generator that engines return, which can be closed."""
    assert isinstance(deltas, AsyncGenerator)
    return deltas
