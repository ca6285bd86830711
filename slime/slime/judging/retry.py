"""Retries, circuit breaker and deferral: the one policy for models that do not answer.

    call ─▶ CircuitBreaker ─▶ with_retries ─▶ the model
              │ open             │ retries or deadline used up
              └─ EngineUnavailable ◀┘ ─▶ failed vote ─▶ Verdict that says when to ask again ─▶ Deferrals ─▶ the store

1. *Within a vote* `with_retries` repeats the call: at a URL `--judge-retries` times; at an engine of ours, which is
   busy rather than down, until the deadline (`--judge-timeout-s`, `--teacher-timeout-s`). No client below retries.
2. *Across votes* a circuit breaker rejects calls to a URL after 5 failures in a row, for a cooldown, then lets one
   probe through. Our engines need none: what reaches them is bounded by `--num-judge-workers`.
3. *Across turns* `Deferrals` separates verdicts that are final from turns to be released and judged later.

Only `EngineUnavailable` is retried; a refusal (`EngineRejected`) is an answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slime.errors import EngineUnavailable
from slime.judging.precedence import PERSON
from slime.types import Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BACKOFF_S = 8.0
MAX_COOLDOWN_S = 300.0

MAX_REFUSALS = 3
"""How often a turn may be deferred again, after others were answered, before it counts as the turn's own fault."""


async def with_retries(call: Callable[[], Awaitable[T]], retries: int | None = None) -> T:
    """The outcome of `call`, repeated while it raises `EngineUnavailable`.

    The wait is what the error names (a server's Retry-After), doubled with every further attempt up to 8 s, and up to a
    quarter longer, at random, so that many callers do not come back at once.

    Args:
        retries: attempts after the first; None: as many as the caller's deadline allows.
    """
    attempt = 0
    while True:
        try:
            return await call()
        except EngineUnavailable as error:
            if attempt == retries:
                raise
            backoff_s = min(MAX_BACKOFF_S, error.retry_after_s * 2 ** min(attempt, 10))
            await asyncio.sleep(max(error.retry_after_s, backoff_s) * random.uniform(1.0, 1.25))
            attempt += 1


class CircuitBreaker:
    """After N consecutive failures rejects calls for a cooldown, then lets one probe call through.

                      `failures` in a row                       cooldown is over
    CLOSED, all pass ────────────────────▶ OPEN, none passes ─────────────────▶ HALF OPEN, one passes
       ▲                                     ▲                  the others wait     │          │
       │                                     └───── it failed: twice the cooldown ──┘          │
       └─────────────────────────────────────────── it succeeded ──────────────────────────────┘

    Only `EngineUnavailable` counts as a failure: a server that refuses a request is up. The log has one line when the
    circuit opens and one when it closes, and none of the probes in between.

    Args:
        name: what is called, for logs and errors.
        failures: how many in a row open it.
        cooldown_s: how long calls are rejected at first; doubled each time the probe fails, up to five minutes.
    """

    def __init__(
        self, name: str, failures: int = 5, cooldown_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._failures = failures
        self._first_cooldown_s = cooldown_s
        self._clock = clock
        self._failures_in_a_row = 0
        self._cooldown_s = cooldown_s
        self._open_until: float | None = None
        self._probing = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether calls are rejected, but for a probe."""
        return self._open_until is not None

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """The function's outcome; while the circuit is open `EngineUnavailable`, which says when to ask again."""
        if self.is_open:
            async with self._probing:  # calls that come while one is under way wait for its outcome
                if self._open_until is not None:
                    if (wait_s := self._open_until - self._clock()) > 0:
                        told = f"{self._name} failed {self._failures_in_a_row} times in a row and is left alone"
                        raise EngineUnavailable(told, wait_s)
                    return await self._watched(function, is_probe=True)
        return await self._watched(function, is_probe=False)

    async def _watched(self, function: Callable[[], Awaitable[T]], *, is_probe: bool) -> T:
        try:
            outcome = await function()
        except EngineUnavailable as error:
            self._failed(error, is_probe)
            raise
        except Exception:
            self._close()  # it answers, if only with a refusal
            raise
        self._close()
        return outcome

    def _failed(self, error: EngineUnavailable, is_probe: bool) -> None:
        self._failures_in_a_row += 1
        if is_probe:
            self._cooldown_s = min(2 * self._cooldown_s, MAX_COOLDOWN_S)
        elif self.is_open or self._failures_in_a_row < self._failures:
            return  # calls that were under way when it opened say nothing new
        if not self.is_open:
            log.error("circuit open name=%s failures=%d error=%s", self._name, self._failures_in_a_row, error)
        self._open_until = self._clock() + self._cooldown_s

    def _close(self) -> None:
        if self.is_open:
            log.warning("circuit closed name=%s", self._name)
        self._failures_in_a_row = 0
        self._cooldown_s = self._first_cooldown_s
        self._open_until = None


class Deferrals:
    """Turns that the judge was unavailable for: which of them to judge later, and from when on.

    A turn that is deferred three times although others were answered in between gets its verdict as it is: the fault
    is the turn's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._num_answered = 0
        self._answered_by_then: dict[str, int] = {}
        self._refusals: Counter[str] = Counter()

    @property
    def pause_s(self) -> float:
        """Seconds for which it is no use to ask the judge."""
        return max(0.0, self._until - self._clock())

    @property
    def has_waiting(self) -> bool:
        """Whether a turn was deferred and has had no final verdict since."""
        return bool(self._answered_by_then)

    def is_final(self, key: str, verdict: Verdict) -> bool:
        """Whether the verdict on `key` is final; if not, release it and ask again after the pause."""
        wait_s = verdict.ask_again_after_s
        if wait_s is None:
            if verdict.votes and verdict.judge != PERSON and verdict.retry_after_s is None:
                self._num_answered += 1
            self.forget(key)
            return True
        self._refusals[key] += self._num_answered > self._answered_by_then.get(key, self._num_answered)
        if self._refusals[key] >= MAX_REFUSALS:
            self.forget(key)
            return True
        self._answered_by_then[key] = self._num_answered
        self._until = max(self._until, self._clock() + wait_s)
        return False

    def forget(self, key: str) -> None:
        """Drop what is known of a turn that has its final verdict, or will never be judged."""
        self._answered_by_then.pop(key, None)
        del self._refusals[key]
