"""Wraps the user's reward function (`--custom-rm-path`) as a judge.

    Turn ─▶ RewardHook (user's code) ─▶ number? finite? in time? ─▶ Verdict
                                          │ no
                                          ▼
                        Verdict without a score; three in a row switch the plug-in off, loudly

A plug-in that fails is no reward: its turns stay unjudged and are never trained.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from slime.plugins.rewards import RewardHook
from slime.types import Turn, Verdict

_log = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3


class PluginJudge:
    """Judges by a reward plug-in. Implements `protocols.Judge`."""

    def __init__(self, hook: RewardHook, *, timeout_s: float, reward_key: str = "") -> None:
        """
        Args:
            timeout_s: how long one reward may take before it counts as failed.
            reward_key: which entry is the score where the plug-in gives a mapping; `score` or `reward` when empty.
        """
        self.hook = hook
        self._keys = (reward_key,) if reward_key else ("score", "reward")
        self.timeout_s = timeout_s
        self._failures_in_a_row = 0

    @property
    def is_disabled(self) -> bool:
        """Whether the plug-in failed so often in a row that it is not asked any more."""
        return self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    async def judge(self, turn: Turn) -> Verdict:
        (verdict,) = await self.ask(f"turn={turn.turn_id}", lambda: self.hook.reward(turn, self.timeout_s), None)
        return verdict

    async def ask(self, what: str, asked: Callable[[], Awaitable[Any]], number: int | None) -> list[Verdict]:
        """One verdict or, from a hook that takes groups, `number` of them; without scores if the hook fails."""
        if self.is_disabled:
            return self._unjudged(
                f"{self.hook.where} is switched off after {MAX_FAILURES_IN_A_ROW} failures in a row", number
            )
        try:
            result = await asked()
            verdicts = [_verdict(result, self._keys)] if number is None else _verdicts(result, number, self._keys)
        except TimeoutError:
            return self._failed(what, f"no reward within {self.timeout_s:g} s", number)
        except Exception as error:  # the user's code: whatever it raises becomes a turn without a score
            return self._failed(what, f"{type(error).__name__}: {' '.join(str(error).split())}", number)
        self._failures_in_a_row = 0
        return verdicts

    def _failed(self, what: str, why: str, number: int | None) -> list[Verdict]:
        self._failures_in_a_row += 1
        _log.warning("reward plug-in failed path=%r %s error=%r", self.hook.where, what, why)
        if self._failures_in_a_row == MAX_FAILURES_IN_A_ROW:
            _log.error(
                "reward plug-in switched off path=%r failures=%d: turns stay unjudged until the next start",
                self.hook.where,
                MAX_FAILURES_IN_A_ROW,
            )
        return self._unjudged(why, number)

    def _unjudged(self, why: str, number: int | None) -> list[Verdict]:
        return [Verdict(score=None, judge="plugin", reason=why)] * (number or 1)


def _verdicts(results: Any, number: int, keys: tuple[str, ...]) -> list[Verdict]:
    """One verdict a sample.

    Raises:
        ValueError: it is not a list with a reward each.
    """
    if isinstance(results, str | bytes | Mapping) or not hasattr(results, "__len__") or len(results) != number:
        given = f"{len(results)} rewards" if hasattr(results, "__len__") else type(results).__name__
        raise ValueError(f"gave {given} for a group of {number} samples")
    return [_verdict(result, keys) for result in results]


def _verdict(result: Any, keys: tuple[str, ...]) -> Verdict:
    """A verdict from what the plug-in gave: a verdict, a number, or a mapping with one of the keys.

    Raises:
        ValueError: it is none of these, or not finite.
    """
    if isinstance(result, Verdict):
        return result
    details: Mapping[str, Any] = {}
    if isinstance(result, Mapping):
        details = {str(key): value for key, value in result.items() if key not in keys}
        result = next((result[key] for key in keys if key in result), None)
    try:
        if isinstance(result, str):
            raise TypeError
        score = float(result)  # a tensor of one number counts as one
    except (TypeError, ValueError):
        raise ValueError(f"gave {type(result).__name__}; a reward is one number") from None
    if not math.isfinite(score):
        raise ValueError(f"gave {score}; a reward must be finite")
    return Verdict(score=score, votes=(score,), judge="plugin", details=details, zero_counts=True)
