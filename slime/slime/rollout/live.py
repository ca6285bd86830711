"""Samples from live conversations: claim a turn, judge it, make the method's sample of it.

    Store ──claim──▶ Turn with its next state ──judge──▶ Verdict ──▶ stored ── make_sample ──▶ SampleGroup ──▶ caller
      ▲                │ too old, or untrainable          │ │ unjudged, or no opinion   │ NotTrained
      │                └────────────▶ excluded, with the reason ◀──────────────────────┘
      └─ released, and claims pause ◀─────────────────────┘ the judge is out

A turn is held under a lease from the claim until the update that consumes it. If a collector dies, its leases expire
and stored verdicts are reused. `num_judge_workers` turns are judged concurrently; serving never waits for them. A
method says only how it makes a sample: its `make_sample` runs in the same task as the judge.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from slime.config.sections import JudgeConfig, RolloutConfig
from slime.data.stitching import ScoredTurn, stitch, why_not_trained
from slime.errors import LeaseLost
from slime.judging.precedence import judge_with_feedback
from slime.judging.retry import Deferrals
from slime.progress import Progress
from slime.protocols import Judge
from slime.rollout.context import RolloutContext
from slime.store import Claim, Store
from slime.types import SampleGroup, Turn, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.2
"""How soon a turn is noticed after its next state was stored."""


@dataclass(frozen=True, slots=True)
class NotTrained:
    """Why a method makes nothing of a judged turn: `NotTrained("there is no hint")`."""

    reason: str


MakeSample = Callable[[Turn, Verdict], Awaitable[T | NotTrained]]
"""What a method makes of a judged turn."""


async def live_samples(ctx: RolloutContext, make_sample: MakeSample[T]) -> AsyncGenerator[T]:
    """What `make_sample` makes of the turns that may be trained and whose verdicts have an opinion; endless.

    While the judge is out, turns wait in the store until they are too old: more than `--max-staleness` updates.

    Args:
        make_sample: an error in it ends the run; it returns `NotTrained` for a turn that it has no use for.
    """
    store, owner, num_workers = ctx.store, ctx.owner, ctx.judging.num_judge_workers
    judging: list[asyncio.Task[T | None]] = []  # in the order they were claimed
    deferrals = Deferrals()
    try:
        while True:
            if room := num_workers - len(judging):
                claims = await store.claim(room, owner, ctx.rollout.lease_s, judged_only=bool(deferrals.pause_s))
                if deferrals.has_waiting:
                    random.shuffle(claims)  # the first finds out whether the judge is back: not always the same one
                judging += [asyncio.create_task(_take_one(ctx, make_sample, claim, deferrals)) for claim in claims]
            if not judging:
                await asyncio.sleep(_POLL_S)
                continue
            await asyncio.wait(judging, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            done = [task for task in judging if task.done()]
            judging = [task for task in judging if not task.done()]
            for task in done:
                if (made := task.result()) is not None:
                    yield made
    finally:
        for task in judging:
            task.cancel()
        await asyncio.gather(*judging, return_exceptions=True)


async def _take_one(ctx: RolloutContext, make_sample: MakeSample[T], claim: Claim, deferrals: Deferrals) -> T | None:
    """Take one claimed turn to a stored verdict and beyond; None when nothing of it can be trained, or not yet."""
    turn, store = claim.turn, ctx.store
    try:
        if why_not := _why_not(turn, ctx.progress, ctx.rollout.max_staleness):
            deferrals.forget(turn.turn_id)
        else:
            stored = None if claim.verdict is None else (turn, claim.verdict)
            judged = stored or await _judged(store, ctx.judge, claim, ctx.owner, deferrals)
            if judged is None or not judged[1].is_effective:
                return None
            made = await make_sample(*judged)
            if not isinstance(made, NotTrained):
                return made
            why_not = made.reason
        await store.exclude([turn.turn_id], why_not)
    except LeaseLost as error:  # another collector has taken it over
        log.warning("lease lost turn=%s error=%s", turn.turn_id, error)
    return None


async def _judged(
    store: Store, judge: Judge, claim: Claim, owner: str, deferrals: Deferrals
) -> tuple[Turn, Verdict] | None:
    """The turn as it was judged and its stored verdict; None, and the turn is free again, while the judge is out.

    It is judged once more for feedback that came while it was judged.
    """
    feedback, turn_id = claim.feedback, claim.turn.turn_id
    while True:
        turn, verdict = await judge_with_feedback(judge, claim.turn, feedback)
        if not deferrals.is_final(turn_id, verdict):
            await store.record_judgements(turn_id, [said for said in verdict.judgements if said.answer])
            await store.release(owner, [turn_id])
            log.debug("turn waits for the judge turn=%s pause_s=%.1f", turn_id, deferrals.pause_s)
            return None
        if await store.record_verdict(turn_id, verdict, owner, feedback=feedback):
            break
        feedback = (await store.feedback(turn_id))[-1]
    # Not the reason, which may quote the person: that is stored with the verdict.
    log.info("turn judged turn=%s score=%s judge=%s hint=%s", turn_id, verdict.score, verdict.judge, bool(verdict.hint))
    return turn, verdict


def _why_not(turn: Turn, progress: Progress, max_staleness: int) -> str:
    if reason := why_not_trained(turn):
        return reason
    for version in {span.version for span in turn.completion.spans}:
        if (staleness := progress.staleness(version)) > max_staleness:
            return f"stale: version {version} sampled it, {staleness} updates ago, and {max_staleness} are the most"
    return ""


def sample_of(turn: Turn, verdict: Verdict) -> SampleGroup:
    """One judged turn as a group of its own; its source is the user whose credential it came with.

    Raises:
        ValueError: the verdict has no score.
    """
    if verdict.score is None:
        raise ValueError(f"turn {turn.turn_id} is unjudged")
    return group_of(ScoredTurn(turn, verdict.score))


def group_of(scored: ScoredTurn) -> SampleGroup:
    """One turn as a group of its own."""
    return SampleGroup(scored.turn.turn_id, stitch([scored], source=scored.turn.source))


def judged_samples(
    store: Store,
    judge: Judge,
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    judging: JudgeConfig,
) -> AsyncGenerator[SampleGroup]:
    """Every turn with a score as a sample: `live_samples` by its parts, for rollouts that ask for them by name."""
    progress = policy_version if isinstance(policy_version, Progress) else Progress(lambda old: policy_version() - old)
    return live_samples(RolloutContext(store, judge, owner, progress, rollout, judging), scored_sample)


async def scored_sample(turn: Turn, verdict: Verdict) -> SampleGroup | NotTrained:
    """The sample of a method that learns from scores alone."""
    return sample_of(turn, verdict) if verdict.has_reward else NotTrained("it has a hint and no score")
