"""Reward plug-ins: a turn in, one number out.

Understood, found by default name or after the colon of the path:

    reward(prompt, response, next_state, …)               a function, plain or async, called by name
    get_reward_model(config) ─▶ object                    a factory
    class CustomRewardModel(checkpoint_path)              a class
          with score(…), compute_reward(…), reward(…) or batch_compute_rewards([{prompt, response, feedback}])
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from slime.errors import PluginError
from slime.messages import text_of
from slime.plugins.calling import NamedCall, run_with_deadline, style_of
from slime.plugins.hooks import GROUP_REWARD, REWARD, same
from slime.plugins.loading import describe, load_object
from slime.types import Message, Turn

_METHODS = ("score", "compute_reward", "reward")
_BATCH_METHOD = "batch_compute_rewards"
_MODEL_PATHS = ("prm_model_path", "checkpoint_path", "model_path")
"""What published files call the directory of their model."""

OF_TURN: dict[str, Callable[[Turn], Any]] = {}
"""Further names on offer, and what makes their values of a turn: an adapter for another library registers its own."""


@dataclass
class RewardHook:
    """A reward of the user's, ready to be asked about a turn.

    Plain functions run one at a time on a thread: the loop goes on, and a model in the plug-in is never entered twice.
    """

    call: Callable[[Mapping[str, Any]], Any]
    settings: Mapping[str, Any]
    where: str
    is_async: bool
    takes_groups: bool = False
    _waiting: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _inside: threading.Lock = field(default_factory=threading.Lock, repr=False)

    async def reward(self, turn: Turn, timeout_s: float) -> Any:
        """Whatever the plug-in gives for a turn, unchecked.

        Raises:
            TimeoutError: it took longer than `timeout_s`, counted from the moment it was called.
            Exception: what the plug-in raised.
        """
        offered = offered_of(turn.messages, turn.completion.text, turn.reply, turn.next_state or ())
        offered |= {"turn": turn, "config": self.settings, "args": SimpleNamespace(**self.settings)}
        return await self.ask(offered | {name: make(turn) for name, make in OF_TURN.items()}, timeout_s)

    async def ask(self, values: Mapping[str, Any], timeout_s: float) -> Any:
        """The same from values by name; where it takes groups in batches, `rows` has the values of each sample."""
        async with contextlib.nullcontext() if self.is_async else self._waiting:
            return await run_with_deadline(
                lambda: self.call(values), timeout_s, is_async=self.is_async, inside=self._inside
            )


def load_reward(path: str, settings: Mapping[str, Any], *, takes_groups: bool = False) -> RewardHook:
    """The reward at `path`; a reward model is built here, so that it fails before anything else is started.

    Args:
        settings: from `plugin_settings(config)`.
        takes_groups: it is asked about all samples of a group at once, `(args, samples)` → a list.

    Raises:
        PluginError: no such file or name, a parameter that is not on offer, or the model cannot be built.
    """
    where = f"{REWARD.flag} {path}"
    found = load_object(path, REWARD.default_names, flag=REWARD.flag)
    if not callable(found):
        raise PluginError(f"{where}: {found!r} is neither a function nor a class")
    if inspect.isclass(found) or _is_factory(found):
        found = _build(found, settings, where)
    method = _method(found, where)
    if method.__name__ == _BATCH_METHOD:

        def in_batches(values: Mapping[str, Any]) -> Any:
            return method([_row(row) for row in values["rows"]]) if takes_groups else method([_row(values)])[0]

        return RewardHook(in_batches, settings, where, is_async=False, takes_groups=takes_groups)
    style = style_of(method)
    if style not in REWARD.styles:
        raise PluginError(f"{where}: {describe(method)} is a {style} function; a reward is one number")
    names = GROUP_REWARD.names if takes_groups else REWARD.names
    call = NamedCall.match(method, names, where=where)
    return RewardHook(call, settings, where, is_async=style == "async", takes_groups=takes_groups)


def _is_factory(function: Callable[..., Any]) -> bool:
    """Whether a function builds a reward model: it is called so, or sees settings and no turn."""
    if getattr(function, "__name__", "") == "get_reward_model":
        return True
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return bool(needed) and set(needed) <= {"config", "settings", "checkpoint_path", "model_path", "prm_model_path"}


def _build(factory: Callable[..., Any], settings: Mapping[str, Any], where: str) -> Any:
    model_path = str(settings.get("prm_model_path", ""))
    needed = PluginError(f"{where}: {describe(factory)} needs a reward model; give --prm-model-path or PRM_MODEL_PATH")
    seen = settings if model_path else _WithoutModel(settings, needed)
    offered = {**settings, "config": seen, "args": SimpleNamespace(**settings)}
    offered |= dict.fromkeys(_MODEL_PATHS, model_path)
    role = f"{where}: what is called get_reward_model builds a reward model; what scores a turn is called reward"
    is_named_so = getattr(factory, "__name__", "") == "get_reward_model"
    call = NamedCall.match(factory, same(*offered), where=role if is_named_so else where)
    if call.asks_for & set(_MODEL_PATHS) and not model_path:
        raise needed
    try:
        return call(offered)
    except PluginError:
        raise
    except Exception as error:  # the user's own code: anything may come out of it
        message = " ".join(str(error).split())
        remedy = "; write it into that file" if isinstance(error, NameError) else ""
        raise PluginError(f"{where}: {describe(factory)}: {type(error).__name__}: {message}{remedy}") from error


class _WithoutModel(dict[str, Any]):
    """The settings where no reward model is named: `config["prm_model_path"]` says so; `.get` gives an empty text."""

    def __init__(self, settings: Mapping[str, Any], needed: PluginError) -> None:
        super().__init__(settings)
        self._needed = needed

    def __getitem__(self, name: str) -> Any:
        if name in _MODEL_PATHS[:2]:
            raise self._needed
        return super().__getitem__(name)


def _method(found: Any, where: str) -> Callable[..., Any]:
    if inspect.isroutine(found):
        return found
    for name in (*_METHODS, _BATCH_METHOD):
        if callable(method := getattr(found, name, None)):
            return method  # type: ignore[no-any-return]
    if callable(found):
        return found.__call__  # type: ignore[no-any-return]
    raise PluginError(f"{where}: {type(found).__name__} has none of {', '.join((*_METHODS, _BATCH_METHOD))}")


def offered_of(
    messages: Sequence[Message], response: str, reply: Message, next_state: Sequence[Message] = ()
) -> dict[str, Any]:
    """What a reward is offered of a request, its reply and what came after it, by name."""
    return {
        "prompt": asked(messages),
        "response": response,
        "next_state": text_of_all(next_state),
        "messages": list(messages),
        "reply": reply,
    }


def _row(values: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of a batch, under the published names."""
    row = {name: values[name] for name in ("prompt", "response", "next_state")}
    return {**row, "feedback": row["next_state"], "next_feedback": row["next_state"]}


def asked(messages: Sequence[Message]) -> str:
    """The text that a turn answers: the messages after the last assistant message, system prompts left out."""
    last = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    return text_of_all([m for m in messages[last + 1 :] if m.get("role") not in ("system", "developer")])


def text_of_all(messages: Sequence[Message]) -> str:
    """The words of messages, one paragraph each; parts that are no text are left out."""
    return "\n\n".join(filter(None, (text_of(message.get("content")) for message in messages)))
