"""Admission control: bounds the requests under way and the memory of their bodies.

    body arrives     ─▶ Bodies: bounded in total; over the bound, the body that has been arriving longest is dropped
    body is complete ─▶ Places: at most `number` requests run; the rest get 503

A request takes a place only once its body is complete, so a client that sends a byte a second holds a connection only.
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
    """Limits concurrent requests; `with places:` takes one place. Raises ApiError 503 when all are taken."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_taken = 0

    def check(self) -> None:
        if self.num_taken >= self.number:
            raise overloaded(f"the server is at its limit of {self.number} concurrent requests; retry later")

    def __enter__(self) -> None:
        self.check()
        self.num_taken += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.num_taken -= 1


class Bodies:
    """Bounds the memory of all request bodies that are arriving or being served.

    Attributes:
        num_bytes: bytes held now.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._arriving: dict[Body, None] = {}  # incomplete bodies, oldest first

    def body(self) -> Body:
        return Body(self)

    def make_room(self, newcomer: Body) -> None:
        """Drop incomplete bodies, oldest first. Raises ApiError 503 when complete bodies hold all the memory."""
        while self.num_bytes > self._max_bytes:
            slowest = next((body for body in self._arriving if body is not newcomer), None)
            if slowest is None:
                raise overloaded(f"request bodies fill their limit of {self._max_bytes // 2**20} MiB; retry later")
            slowest.give_way()


class Body:
    """Accounts for one body from its first byte to the end of its request: `with bodies.body() as body:`."""

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
        """Mark the body as incomplete; each chunk extends `deadline`."""
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
        """The error for a body that missed its deadline or was dropped."""
        if self._gave_way:
            return overloaded("the request body arrived too slowly and was dropped to free memory; retry later")
        return ApiError(408, f"the request body arrives slower than {SLOWEST_BYTES_PER_S // 1024} KiB/s")
