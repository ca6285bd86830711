"""Runs long work on the event loop in slices of milliseconds, between which other requests run for as long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

_SMALL_BYTES = 8_192
_SLICE_S = 0.004
"""Others get as long after each slice: a request has several steps, and would wait for a slice at each of them."""


async def in_slices(items: Iterable[T], num_bytes: int = 0) -> list[T]:
    """Collect a lazy iterable of cheap items; yields to the event loop every few milliseconds.

    >>> await in_slices((read_message(message) for message in messages), num_bytes=2_800)

    Args:
        num_bytes: size of the request that the items are made of, 0 if unknown; a small one takes no millisecond.
    """
    if 0 < num_bytes <= _SMALL_BYTES:
        return list(items)
    made: list[T] = []
    began = time.monotonic()
    for item in items:
        made.append(item)
        if time.monotonic() - began > _SLICE_S:
            await asyncio.sleep(_SLICE_S)
            began = time.monotonic()
    return made
