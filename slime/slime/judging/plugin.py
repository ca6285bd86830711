"""A judge made of the user's reward function: `--custom-rm-path`.

    Turn ─▶ RewardHook (user's code) ─▶ number? finite? in time? ─▶ Verdict
                                          │ no
                                          ▼
                        Verdict without a score; three in a row switch the plug-in off, loudly

A plug-in that fails is no reward: its turns stay unjudged and are never trained.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from slime.plugins.rewards import RewardHook
from slime.types import Turn, Verdict

_log = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 3


class PluginJudge:
    """Judges by a reward plug-in. Implements `protocols.Judge`."""

    def __init__(self, hook: RewardHook, *, timeout_s: float) -> None:
        """
        Args:
            timeout_s: how long one reward may take before it counts as failed.
        """
        self._hook = hook
        self._timeout_s = timeout_s
        self._failures_in_a_row = 0

    @property
    def is_disabled(self) -> bool:
        """Whether the plug-in failed so often in a row that it is not asked any more."""
        return self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    async def judge(self, turn: Turn) -> Verdict:
        if self.is_disabled:
            return self._unjudged(f"{self._hook.where} is switched off after {MAX_FAILURES_IN_A_ROW} failures in a row")
        try:
            verdict = _verdict(await self._hook.reward(turn, self._timeout_s))
        except TimeoutError:
            return self._failed(turn, f"no reward within {self._timeout_s:g} s")
        except Exception as error:  # the user's code: whatever it raises becomes a turn without a score
            return self._failed(turn, f"{type(error).__name__}: {' '.join(str(error).split())}")
        self._failures_in_a_row = 0
        return verdict

    def _failed(self, turn: Turn, why: str) -> Verdict:
        self._failures_in_a_row += 1
        _log.warning("reward plug-in failed path=%r turn=%s error=%r", self._hook.where, turn.turn_id, why)
        if self._failures_in_a_row == MAX_FAILURES_IN_A_ROW:
            _log.error(
                "reward plug-in switched off path=%r failures=%d: turns stay unjudged until the next start",
                self._hook.where,
                MAX_FAILURES_IN_A_ROW,
            )
        return self._unjudged(why)

    def _unjudged(self, why: str) -> Verdict:
        return Verdict(score=None, judge="plugin", reason=why)


def _verdict(result: Any) -> Verdict:
    """A verdict from what the plug-in gave: a verdict, a number, or a mapping with a `score`.

    Raises:
        ValueError: it is none of these, or not finite.
    """
    if isinstance(result, Verdict):
        return result
    details: Mapping[str, Any] = {}
    if isinstance(result, Mapping):
        details = {str(key): value for key, value in result.items() if key not in ("score", "reward")}
        result = result.get("score", result.get("reward"))
    try:
        if isinstance(result, str):
            raise TypeError
        score = float(result)  # a tensor of one number counts as one
    except (TypeError, ValueError):
        raise ValueError(f"gave {type(result).__name__}; a reward is one number") from None
    if not math.isfinite(score):
        raise ValueError(f"gave {score}; a reward must be finite")
    return Verdict(score=score, votes=(score,), judge="plugin", details=details)
