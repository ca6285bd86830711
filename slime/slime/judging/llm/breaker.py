"""A circuit breaker: who failed again and again is left alone for a while, and then tried with one call.

                  `failures` in a row                     cooldown is over
CLOSED, all pass ────────────────────▶ OPEN, none passes ─────────────────▶ HALF OPEN, one passes
   ▲                                     ▲                  the others wait     │          │
   │                                     └───── it failed: twice the cooldown ──┘          │
   └─────────────────────────────────────────── it succeeded ──────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slime.errors import EngineUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_COOLDOWN_S = 300.0


class CircuitBreaker:
    """Lets calls through to something that may be down.

    Only `EngineUnavailable` counts as a failure: whoever refuses a request is up. A line in the log says when it opens
    and when it closes, and none tells of the trials in between.

    Args:
        name: who is called, for logs and errors.
        failures: how many in a row open it.
        cooldown_s: how long nobody asks at first; doubled each time the trial fails, up to five minutes.
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
        self._trial: asyncio.Event | None = None

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, but for a trial."""
        return self._open_until is not None

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """The function's outcome; while the circuit is open `EngineUnavailable`, which says when to ask again."""
        is_trial = await self._admit()
        try:
            outcome = await function()
        except EngineUnavailable as error:
            self._failed(error, is_trial)
            raise
        except Exception:
            self._close()  # it answers, if only with a refusal
            raise
        else:
            self._close()
            return outcome
        finally:
            if is_trial and self._trial is not None:
                self._trial.set()
                self._trial = None

    async def _admit(self) -> bool:
        """Whether this call is the trial; who comes while one is under way shares its fate."""
        while self._open_until is not None:
            wait_s = self._open_until - self._clock()
            if wait_s > 0:
                raise EngineUnavailable(
                    f"{self._name} failed {self._failures_in_a_row} times in a row and is left alone", wait_s
                )
            if self._trial is None:
                self._trial = asyncio.Event()
                return True
            await self._trial.wait()
        return False

    def _failed(self, error: EngineUnavailable, is_trial: bool) -> None:
        self._failures_in_a_row += 1
        if is_trial:
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
