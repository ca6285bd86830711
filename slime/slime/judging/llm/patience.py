"""Asking an engine that may be busy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from slime.errors import EngineUnavailable

T = TypeVar("T")


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the engine has room; the deadline of whoever awaits this ends the asking."""
    while True:
        try:
            return await call()
        except EngineUnavailable as error:
            await asyncio.sleep(error.retry_after_s)
