"""Call by parameter name: a function asks for what it wants, as a test asks for fixtures.

def compute_loss(policy_logprobs, advantages, config): …
      │ at start-up: is every name on offer?
      ▼
NamedCall(function, names)(values)              reads values["policy_logprobs"], … and nothing else
await NamedCall(…).in_time(values, timeout_s)   beside the loop, with a deadline; what fails is a PluginError
      │ async ──▶ awaited             ┐
      │ plain ──▶ on a daemon thread  ┴─▶ its result, what it raised, or TimeoutError

A thread cannot be ended from outside; it is a daemon, so a call that hangs does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slime.errors import PluginError, nearest
from slime.plugins.loading import describe

Style = Literal["plain", "async", "generator", "async generator"]

_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class NamedCall:
    """A function whose parameters have been matched with the names on offer.

    Attributes:
        positional, keyword: which offered name each parameter is filled from.
    """

    function: Callable[..., Any]
    positional: tuple[str, ...]
    keyword: Mapping[str, str]

    @classmethod
    def match(cls, function: Callable[..., Any], names: Mapping[str, str], *, where: str = "") -> NamedCall:
        """Match a function with what is on offer.

        Args:
            names: parameter name → the name its value is found under; most map to themselves, published
                synonyms to ours (`policy_logits` → `policy_logprobs`).
            where: flag and path as the user wrote them, for messages.

        Raises:
            PluginError: it asks for a name that is not on offer; parameters with a default may.
        """
        place = where or describe(function)
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            raise PluginError(f"{place}: {function!r} is not a function whose parameters can be read") from None
        positional: list[str] = []
        keyword: dict[str, str] = {}
        for parameter in parameters:
            if parameter.kind in _STARRED:
                continue
            if parameter.name in names:
                if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                    positional.append(names[parameter.name])
                else:
                    keyword[parameter.name] = names[parameter.name]
            elif parameter.default is inspect.Parameter.empty:
                raise PluginError(
                    f"{place}: {describe(function)} asks for {parameter.name!r}, which is not one of "
                    f"{', '.join(sorted(names))}{nearest(parameter.name, names)}"
                )
        return cls(function, tuple(positional), keyword)

    @property
    def place(self) -> str:
        """How messages name it: `custom_loss.py:compute_loss`."""
        return describe(self.function)

    @property
    def asks_for(self) -> frozenset[str]:
        """The names that a call reads."""
        return frozenset(self.positional) | frozenset(self.keyword.values())

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Call with what the function asked for; nothing else is read, so the mapping may be lazy."""
        return self.function(
            *(self._value(values, name) for name in self.positional),
            **{parameter: self._value(values, name) for parameter, name in self.keyword.items()},
        )

    async def in_time(self, values: Mapping[str, Any], timeout_s: float) -> Any:
        """The same beside the loop: a plain function on a thread of its own.

        Args:
            timeout_s: `--hook-timeout-s`.

        Raises:
            PluginError: it raised, or took too long; the message names it.
        """
        is_async = style_of(self.function) == "async"
        with user_code(self.place, timeout_s):
            return await run_with_deadline(lambda: self(values), timeout_s, is_async=is_async)

    def _value(self, values: Mapping[str, Any], name: str) -> Any:
        try:
            return values[name]
        except KeyError as error:
            raise PluginError(f"{self.place} asks for {name!r}, which this run does not have") from error


def style_of(function: object) -> Style:
    """What calling it gives: a value, an awaitable, or a stream of values."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.isasyncgenfunction(target):
        return "async generator"
    if inspect.iscoroutinefunction(target):
        return "async"
    return "generator" if inspect.isgeneratorfunction(target) else "plain"


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
