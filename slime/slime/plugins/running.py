"""Run code of the user's beside the loop, with a deadline: an awaitable as it is, a plain function on a thread.

    call(values) ── async ──▶ awaited            ┐
                 ── plain ──▶ a daemon thread    ┴─▶ its result, what it raised, or TimeoutError

A thread cannot be ended from outside; it is a daemon, so a call that hangs does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from slime.errors import PluginError


@contextlib.contextmanager
def user_code(place: str, timeout_s: float = 0.0) -> Iterator[None]:
    """The boundary around a call of the user's code: what it raises becomes a PluginError of one line that names it.

    Args:
        place: file and function, e.g. `custom_rm.py:reward`.
        timeout_s: `--hook-timeout-s`, where the call has that deadline.
    """
    try:
        yield
    except PluginError:
        raise
    except Exception as error:  # the user's code: anything may come out of it
        if timeout_s and isinstance(error, TimeoutError):
            raise PluginError(f"{place} took longer than --hook-timeout-s {timeout_s:g}") from None
        raise PluginError(f"{place}: {type(error).__name__}: {' '.join(str(error).split())}") from error


async def run_with_deadline(
    work: Callable[[], Any], timeout_s: float, *, is_async: bool, inside: threading.Lock | None = None
) -> Any:
    """What `work` gives.

    Args:
        work: the call, without arguments; one that is not async may still return an awaitable, which is awaited.
        inside: held by a plain function while it runs, for code that must not be entered twice.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
        Exception: what it raised.
    """
    async with asyncio.timeout(timeout_s):
        result = work() if is_async else await _on_a_thread(work, inside)
        return await result if inspect.isawaitable(result) else result


async def _on_a_thread(work: Callable[[], Any], inside: threading.Lock | None) -> Any:
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    outcome.set_running_or_notify_cancel()  # no deadline can take it back, so its end is told without a look

    def run() -> None:
        with inside or contextlib.nullcontext():
            try:
                outcome.set_result(work())
            except StopIteration as error:  # no future of a loop can hold it
                outcome.set_exception(RuntimeError(f"StopIteration: {error}"))
            except Exception as error:  # the user's own code; it is raised again where the call is awaited
                outcome.set_exception(error)

    threading.Thread(target=run, name="plug-in", daemon=True).start()
    return await asyncio.wrap_future(outcome)
