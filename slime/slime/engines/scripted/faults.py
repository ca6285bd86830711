"""Faults on demand, each counted when it fires: a fault that did not fire proves nothing."""

from __future__ import annotations

import enum
from collections import Counter, deque


class Fault(enum.StrEnum):
    """What can go wrong with one request."""

    HTTP_500 = "http_500"  # refused with 500
    HTTP_503 = "http_503"  # refused with 503
    HANG = "hang"  # accepted, never answered
    CUT = "cut"  # the connection drops halfway through the answer
    BAD_JSON = "bad_json"  # halfway through, something that is no JSON
    NAN_LOGPROB = "nan_logprob"  # the first log-prob is not a number
    WRONG_COUNT = "wrong_count"  # a log-prob is missing
    WRONG_VERSION = "wrong_version"  # a version that was never published
    SLOW = "slow"  # a second before every token


class InjectedFault(Exception):
    """A fault of an answer that only a transport can show: a status, a cut, something that is no JSON."""

    def __init__(self, fault: Fault, *, is_begun: bool = False) -> None:
        """`is_begun`: events of the stream have left."""
        super().__init__(f"injected {fault}")
        self.fault = fault
        self.is_begun = is_begun


class Faults:
    """Which of the coming requests go wrong.

    >>> faults = Faults()
    >>> faults.plan(Fault.CUT, times=2, after=1)    # not the next request, but the two after it
    """

    def __init__(self) -> None:
        self._planned: deque[Fault | None] = deque()  # of the coming requests, one each
        self.fired: Counter[Fault] = Counter()

    def plan(self, fault: Fault, times: int = 1, after: int = 0) -> None:
        """Let `times` requests go wrong, once `after` others have passed. Plans are worked off one after another."""
        self._planned += [None] * after + [fault] * times

    def draw(self) -> Fault | None:
        """The fault of the request at hand, if it is to have one."""
        fault = self._planned.popleft() if self._planned else None
        if fault is not None:
            self.fired[fault] += 1
        return fault

    @property
    def are_planned(self) -> bool:
        """Whether any was ever planned: one that was drawn last may go on."""
        return bool(self._planned or self.fired)
