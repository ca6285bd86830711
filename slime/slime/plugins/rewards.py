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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from slime.errors import PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import REWARD, same, style_of
from slime.plugins.loading import describe, load_object
from slime.types import Message, Turn

_METHODS = ("score", "compute_reward", "reward")
_BATCH_METHOD = "batch_compute_rewards"


@dataclass
class RewardHook:
    """A reward of the user's, ready to be asked about a turn.

    Plain functions run one at a time on a thread: the loop goes on, and a model in the plug-in is never entered
    twice. The threads are daemons, so a call that hangs does not keep the process from ending.
    """

    call: NamedCall
    settings: Mapping[str, Any]
    where: str
    is_async: bool
    takes_batches: bool = False
    _waiting: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _inside: threading.Lock = field(default_factory=threading.Lock, repr=False)

    async def reward(self, turn: Turn, timeout_s: float) -> Any:
        """Whatever the plug-in gives for a turn, unchecked.

        Raises:
            TimeoutError: it took longer than `timeout_s`, counted from the moment it was called.
            Exception: what the plug-in raised.
        """
        values = _values(turn, self.settings)
        if self.is_async:
            return await asyncio.wait_for(self._invoke(values), timeout_s)
        async with self._waiting:
            return await asyncio.wait_for(self._on_a_thread(values), timeout_s)

    async def _on_a_thread(self, values: Mapping[str, Any]) -> Any:
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if outcome.cancelled():  # its deadline passed
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)

        def run() -> None:
            result, failure = None, None
            with self._inside:
                try:
                    result = self._invoke(values)
                except Exception as error:  # the user's own code; it is raised again where the call is awaited
                    failure = error
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                outcome.get_loop().call_soon_threadsafe(settle, result, failure)

        threading.Thread(target=run, name="reward-plugin", daemon=True).start()
        return await outcome

    def _invoke(self, values: Mapping[str, Any]) -> Any:
        if self.takes_batches:
            row = {name: values[name] for name in ("prompt", "response", "next_state")}
            return self.call.function([{**row, "feedback": row["next_state"], "next_feedback": row["next_state"]}])[0]
        return self.call(values)


def load_reward(path: str, settings: Mapping[str, Any]) -> RewardHook:
    """The reward at `path`; a reward model is built here, so that it fails before anything else is started.

    Args:
        settings: from `plugin_settings(config)`.

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
        return RewardHook(NamedCall(method, (), {}), settings, where, is_async=False, takes_batches=True)
    style = style_of(method)
    if style not in REWARD.styles:
        raise PluginError(f"{where}: {describe(method)} is a {style} function; a reward is one number")
    return RewardHook(NamedCall.match(method, REWARD.names, where=where), settings, where, is_async=style == "async")


def _is_factory(function: Callable[..., Any]) -> bool:
    """Whether a function builds a reward model: it is called so, or sees settings and no turn."""
    if getattr(function, "__name__", "") == "get_reward_model":
        return True
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return bool(needed) and set(needed) <= {"config", "settings", "checkpoint_path", "model_path", "prm_model_path"}


def _build(factory: Callable[..., Any], settings: Mapping[str, Any], where: str) -> Any:
    offered = {**settings, "config": settings, "args": SimpleNamespace(**settings)}
    offered["model_path"] = offered["checkpoint_path"] = settings.get("judge_model_path", "")
    call = NamedCall.match(factory, same(*offered), where=where)
    missing = {"checkpoint_path", "prm_model_path", "model_path"} & call.asks_for
    if missing and not settings.get("judge_model_path"):
        raise PluginError(
            f"{where}: {describe(factory)} needs a reward model; give --judge-model-path or PRM_MODEL_PATH"
        )
    try:
        return call(offered)
    except Exception as error:  # the user's own code: anything may come out of it
        message = " ".join(str(error).split())
        raise PluginError(f"{where}: {describe(factory)}: {type(error).__name__}: {message}") from error


def _method(found: Any, where: str) -> Callable[..., Any]:
    if inspect.isroutine(found):
        return found
    for name in (*_METHODS, _BATCH_METHOD):
        if callable(method := getattr(found, name, None)):
            return method  # type: ignore[no-any-return]
    if callable(found):
        return found.__call__  # type: ignore[no-any-return]
    raise PluginError(f"{where}: {type(found).__name__} has none of {', '.join((*_METHODS, _BATCH_METHOD))}")


def _values(turn: Turn, settings: Mapping[str, Any]) -> dict[str, Any]:
    prompt = _text(_since_last_reply(turn.messages))
    response = turn.completion.text
    next_state = _text(turn.next_state or ())
    sample = SimpleNamespace(  # slime's names, for `(args, sample)`
        prompt=prompt,
        response=response,
        tokens=[*turn.prompt_ids, *turn.completion.token_ids],
        response_length=len(turn.completion.token_ids),
        rollout_log_probs=list(turn.completion.logprobs),
        label=None,
        reward=None,
        session_id=turn.session_id,
        metadata={**turn.details, "next_state": next_state, "messages": list(turn.messages)},
    )
    return {
        "prompt": prompt,
        "response": response,
        "next_state": next_state,
        "messages": list(turn.messages),
        "reply": turn.reply,
        "turn": turn,
        "sample": sample,
        "config": settings,
        "args": SimpleNamespace(**settings),
    }


def _since_last_reply(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """What this turn answers: the messages after the last assistant message, system prompts left out."""
    last = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    return tuple(message for message in messages[last + 1 :] if message.get("role") not in ("system", "developer"))


def _text(messages: tuple[Message, ...]) -> str:
    """The words of messages, one paragraph each; parts that are no text are left out."""
    paragraphs: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "\n".join(part.get("text", "") for part in content if isinstance(part, Mapping))
        paragraphs.append(str(content))
    return "\n\n".join(filter(None, paragraphs))
