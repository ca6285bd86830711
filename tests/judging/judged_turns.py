"""Turns to judge: a request, our reply and what came next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime.config.sections import JudgeConfig, RolloutConfig
from slime.progress import Progress
from slime.protocols import Judge
from slime.rollout.context import RolloutContext
from slime.store import Store
from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, Verdict, VersionSpan


def turn_with(next_state: list[Message] | str | None, request: str = "Say hi.", reply: Any = "Hi there.") -> Turn:
    """`turn_with("Thanks!")`: a turn whose reply was answered so."""
    messages = [{"role": "user", "content": next_state}] if isinstance(next_state, str) else next_state
    return Turn(
        turn_id="t1",
        session_id="s1",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=({"role": "system", "content": "SYSTEM-PROMPT"}, {"role": "user", "content": request}),
        prompt_ids=(1, 2, 3),
        completion=Completion((4,), (-0.1,), str(reply), "stop", (VersionSpan(0, 0, 1),)),
        sampling=SamplingParams(),
        reply=reply if isinstance(reply, dict) else {"role": "assistant", "content": reply},
        next_state=None if messages is None else tuple(messages),
    )


def loop_over(
    store: Store, judge: Judge, version: Callable[[], int] = lambda: 0, *, workers: int = 2
) -> RolloutContext:
    """A live loop's context, where every version is an update."""
    progress = Progress(lambda old: version() - old)
    return RolloutContext(store, judge, "c", progress, RolloutConfig(), JudgeConfig(num_judge_workers=workers))


async def with_verdict(turn: Turn, verdict: Verdict) -> tuple[Turn, Verdict]:
    """A `make_sample` that keeps what it is given."""
    return turn, verdict
