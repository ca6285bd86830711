"""Call by parameter name: a function asks for what it wants, as a test asks for fixtures.

def compute_loss(policy_logprobs, advantages, config): …
      │ at start-up: is every name on offer?
      ▼
NamedCall(function, names)(values)              reads values["policy_logprobs"], … and nothing else
await NamedCall(…).in_time(values, timeout_s)   beside the loop, with a deadline; what fails is a PluginError
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slime.errors import PluginError, nearest
from slime.plugins.loading import describe
from slime.plugins.running import run_with_deadline, user_code

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
