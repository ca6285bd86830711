"""What requests may hold at once: places, and memory for their bodies.

    body arrives ─▶ Bodies: bounded in total; the one that arrives longest gives way
    body is there ─▶ Places: so many requests under way; more are refused

A place is taken when the body is there: a client that sends a byte a second holds a connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from openclaw.api.errors import ApiError, overloaded

GRACE_S = 10.0
SLOWEST_BYTES_PER_S = 64 * 1024
LONGEST_S = 60.0


class Places:
    """Requests under way; `with places:` holds one. Raises ApiError 503 when all are taken."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_taken = 0

    def check(self) -> None:
        if self.num_taken >= self.number:
            raise overloaded(f"{self.num_taken} requests are under way, which is all this server takes at once")

    def __enter__(self) -> None:
        self.check()
        self.num_taken += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.num_taken -= 1


class Bodies:
    """The memory of all bodies that arrive or are being served.

    Attributes:
        num_bytes: how much they hold.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._arriving: dict[Body, None] = {}  # in pieces, the longest first

    def body(self) -> Body:
        return Body(self)

    def make_room(self, newcomer: Body) -> None:
        """Have slow ones give way. Raises ApiError 503 when nothing but whole bodies holds the memory."""
        while self.num_bytes > self._max_bytes:
            slowest = next((body for body in self._arriving if body is not newcomer), None)
            if slowest is None:
                raise overloaded(f"request bodies hold {self._max_bytes // 2**20} MiB, all that this server gives them")
            slowest.give_way()


class Body:
    """One body from its first byte to the end of its request: `with bodies.body() as body:`."""

    def __init__(self, bodies: Bodies) -> None:
        self._all = bodies
        self._num_bytes = 0
        self._deadline: asyncio.Timeout | None = None
        self._began = 0.0
        self._gave_way = False

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._all.num_bytes -= self._num_bytes
        self._num_bytes = 0
        self._all._arriving.pop(self, None)

    def arrives(self, deadline: asyncio.Timeout) -> None:
        """It comes in pieces, within a deadline that each piece moves."""
        self._deadline = deadline
        self._began = time.monotonic()
        self._all._arriving[self] = None

    def grew(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._all.num_bytes += num_bytes
        if self._deadline is not None and not self._gave_way:
            allowed = min(LONGEST_S, GRACE_S + self._num_bytes / SLOWEST_BYTES_PER_S)
            ago = time.monotonic() - self._began
            self._deadline.reschedule(asyncio.get_running_loop().time() + allowed - ago)
        if self._all.num_bytes > self._all._max_bytes:
            self._all.make_room(self)

    def is_whole(self) -> None:
        self._deadline = None
        self._all._arriving.pop(self, None)

    def give_way(self) -> None:
        self._all._arriving.pop(self, None)
        self._all.num_bytes -= self._num_bytes
        self._num_bytes = 0
        self._gave_way = True
        assert self._deadline is not None
        self._deadline.reschedule(0)

    def late(self) -> ApiError:
        """What the client is told whose body did not come in time."""
        if self._gave_way:
            return overloaded("the request's body came slower than others, and its memory was needed")
        return ApiError(408, f"the request's body comes slower than {SLOWEST_BYTES_PER_S // 1024} KiB/s")
