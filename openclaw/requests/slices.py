"""Long work on the event loop is done in slices of milliseconds, between which other requests run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

_SLICE_S = 0.004


async def in_slices(items: Iterable[T]) -> list[T]:
    """The items of a lazy iterable, each of them short work; every few milliseconds the event loop runs.

    >>> await in_slices(read_message(message) for message in messages)
    """
    made: list[T] = []
    began = time.monotonic()
    for item in items:
        made.append(item)
        if time.monotonic() - began > _SLICE_S:
            await asyncio.sleep(0)
            began = time.monotonic()
    return made
