"""Writes to the turn store in order, with retries: a disk that is temporarily full or locked delays turns, loses none.

    write ─▶ the store, within a deadline ─▶ stored
                │ timeout, or temporarily unavailable
                ▼
             Spool: bounded FIFO, retried with backoff ─▶ stored later, reported as `pending`
                │ spool full, or the store rejects the turn
                ▼
             failed: not stored, and not retried

While entries wait, later writes queue behind them, since a turn names its parent. The spool is in memory and lost when
the process is killed, so only `stored` is an acknowledgement.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from slime.errors import StoreError, StoreUnavailable

log = logging.getLogger(__name__)

Outcome = Literal["stored", "pending", "failed", "off"]
"""The outcome for a turn: committed; queued in memory until the store commits again; lost; not captured."""

Job = Callable[[], Coroutine[Any, Any, Any]]

COMMIT_PATIENCE_S, SICK_COMMIT_PATIENCE_S = 5.0, 0.25
"""How long a reply waits for its commit; the second applies while earlier writes are queued."""
CHECK_PATIENCE_S = 2.0
CHECKED_FOR_S = 2.0
"""How long a result of the write check is cached, so that health checks do not cost an fsync each."""
MAX_WAITING = 1_000
MAX_WAITING_TOKENS = 4_000_000
_PAUSES_S = (0.1, 0.25, 0.5, 1.0, 2.0)


@dataclass(slots=True, eq=False)
class _Entry:
    name: str
    job: Job
    num_tokens: int
    running: asyncio.Task[Any] | None
    ended: asyncio.Future[Outcome]


class Spool:
    """Runs store writes in order and queues them while the store is unavailable.

    Attributes:
        num_failed: jobs given up, those first reported as pending included.
        num_stored: committed jobs that hold tokens, i.e. turns.

    Args:
        check: a commit without changes.
    """

    def __init__(self, check: Job, max_waiting: int = MAX_WAITING, max_tokens: int = MAX_WAITING_TOKENS) -> None:
        self.num_failed = 0
        self.num_stored = 0
        self._check = check
        self._checking = asyncio.Lock()
        self._checked_at = float("-inf")
        self._was_writable = True
        self._refuses = False
        self._max_waiting = max_waiting
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._waiting: deque[_Entry] = deque()
        self._drain: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._max_waiting and self._num_tokens < self._max_tokens

    @property
    def keeps_turns(self) -> bool:
        """Whether a turn that ends now is kept, if only in memory until the store commits again."""
        return self.has_room and not self._refuses

    async def is_writable(self) -> bool:
        """Whether a commit would succeed now, or recently did."""
        async with self._checking:
            if time.monotonic() - self._checked_at > CHECKED_FOR_S:
                await self._ask()
        return self._was_writable and not self._waiting

    async def _ask(self) -> None:
        self._was_writable = self._refuses = False
        try:
            async with asyncio.timeout(CHECK_PATIENCE_S):
                await self._check()
            self._was_writable = True
        except (StoreError, TimeoutError) as error:
            self._refuses = not isinstance(error, StoreUnavailable | TimeoutError)
            log.warning("store not writable error=%s", error)
        self._checked_at = time.monotonic()

    async def write(self, name: str, job: Job, num_tokens: int = 0) -> Outcome:
        """Run a job and wait up to the reply's deadline; cancelling the caller does not cancel the job.

        Args:
            name: for the log, e.g. the turn's id.
            job: must be idempotent; it may run several times.
            num_tokens: tokens held in memory.
        """
        if self._waiting:
            if not self.has_room:
                return self._failed(name, StoreUnavailable(f"the spool is full: {len(self._waiting)} turns wait"))
            entry = self._keep(name, job, num_tokens, None)
            await asyncio.wait([entry.ended], timeout=SICK_COMMIT_PATIENCE_S)
            return entry.ended.result() if entry.ended.done() else "pending"
        running = asyncio.get_running_loop().create_task(job())
        await asyncio.wait([running], timeout=COMMIT_PATIENCE_S)
        if running.done() and not isinstance(running.exception(), StoreUnavailable):
            error = running.exception()
            return self._committed(num_tokens) if error is None else self._failed(name, error)
        reason = running.exception() if running.done() else f"no commit in {COMMIT_PATIENCE_S:g} s"
        log.warning("store write queued turn=%s error=%s", name, reason)
        self._keep(name, job, num_tokens, None if running.done() else running)
        return "pending"

    async def close(self, timeout_s: float) -> None:
        """Drain the queue until the timeout; log every remaining turn as lost."""
        if self._drain is not None:
            await asyncio.wait([self._drain], timeout=timeout_s)
            self._drain.cancel()
        while self._waiting:
            self._end(self._failed(self._waiting[0].name, StoreUnavailable("the server is shutting down")))

    def _keep(self, name: str, job: Job, num_tokens: int, running: asyncio.Task[Any] | None) -> _Entry:
        loop = asyncio.get_running_loop()
        entry = _Entry(name, job, num_tokens, running, loop.create_future())
        self._waiting.append(entry)
        self._num_tokens += num_tokens
        if self._drain is None or self._drain.done():
            self._drain = loop.create_task(self._commit_waiting())
        return entry

    async def _commit_waiting(self) -> None:
        num_attempts = 0
        while self._waiting:
            entry = self._waiting[0]
            try:
                await (entry.running or entry.job())
            except StoreUnavailable:
                entry.running = None
                await asyncio.sleep(_PAUSES_S[min(num_attempts, len(_PAUSES_S) - 1)])
                num_attempts += 1
            except Exception as error:  # the store rejects this turn; later ones may succeed
                self._end(self._failed(entry.name, error))
            else:
                num_attempts = 0
                log.info("queued turn stored turn=%s waiting=%d", entry.name, len(self._waiting) - 1)
                self._end(self._committed(entry.num_tokens))

    def _end(self, outcome: Outcome) -> None:
        entry = self._waiting.popleft()
        self._num_tokens -= entry.num_tokens
        if not entry.ended.done():
            entry.ended.set_result(outcome)

    def _committed(self, num_tokens: int) -> Outcome:
        self.num_stored += num_tokens > 0
        self._checked_at, self._was_writable, self._refuses = time.monotonic(), True, False
        return "stored"

    def _failed(self, name: str, error: BaseException) -> Outcome:
        self.num_failed += 1
        level = logging.ERROR if isinstance(error, StoreError) else logging.CRITICAL
        log.log(level, "turn not stored turn=%s error=%s", name, error)
        return "failed"
