"""While the judge is out, turns wait for it: what may only be asked again is told from what is said for good.

Verdict ─ says when to ask again? ─ no ──▶ it stands
                │ yes
                ├─ others were answered since it was turned away, thrice ─▶ it stands: the fault is the turn's
                └─ else ─▶ later: it is no use to ask anybody before `pause_s` is over
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from slime.judging.precedence import PERSON
from slime.types import Verdict

MAX_REFUSALS = 3
"""How often a turn may be turned away again, after others were answered, before it counts as one to be given up."""


class Outage:
    """Who is to be judged again, and until when it is no use to ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._num_answered = 0
        self._answered_by_then: dict[str, int] = {}
        self._refusals: Counter[str] = Counter()

    @property
    def pause_s(self) -> float:
        """For how long nobody need be sent to the judge."""
        return max(0.0, self._until - self._clock())

    @property
    def has_waiting(self) -> bool:
        """Whether somebody was turned away and has had no last word since."""
        return bool(self._answered_by_then)

    def is_final(self, key: str, verdict: Verdict) -> bool:
        """Whether the verdict on `key` is the last word; if not, ask for another when the pause is over."""
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
        """Have no part of it any more: it has had its last word, or will never be judged."""
        self._answered_by_then.pop(key, None)
        del self._refusals[key]
