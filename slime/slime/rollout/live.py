"""Samples from conversations that are going on.

    Store ──claim──▶ Turn with its next state ──judge──▶ Verdict ──▶ stored ──finish──▶ Sample ──▶ the caller
      ▲                │ too old, or not to be trained    │ │ unjudged, or no opinion   │ not this method's
      │                └────────────▶ excluded, with the reason ◀──────────────────────┘
      └─ released, and no other claimed for a while ◀─────┘ the judge is out

A turn is held under a lease from the claim until the update that consumes it; a collector that dies
lets go of it, and what was judged by then is not judged again. Several turns are judged at once, and
the serving side never waits for any of it. What is made of a judged turn is the method's affair: its `finish`
runs on the same worker as the judge.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from slime.config import JudgeConfig, RolloutConfig
from slime.data.stitching import ScoredTurn, stitch, why_not_trained
from slime.errors import LeaseLost
from slime.judging.precedence import judge_with_feedback
from slime.judging.retry import Deferrals
from slime.protocols import Judge, PolicyVersion
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


Finish = Callable[[Turn, Verdict], Awaitable[T | NotTrained]]
"""What a method makes of a turn whose verdict says something."""


async def finished_turns(
    store: Store,
    judge: Judge,
    finish: Finish[T],
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    num_workers: int,
) -> AsyncGenerator[T]:
    """What `finish` makes of turns that may be trained and whose verdicts say something, as it is made; endless.

    While the judge is out turns wait for it in the store, as long as they are not too old.

    Args:
        finish: its errors end the collecting; what may fail in a turn is for it to turn into `NotTrained`.
        owner: who holds the leases; a collector started again under the same name may release its old ones.
        policy_version: says how old a turn is; those more than `rollout.max_staleness` updates old are excluded. A
            plain function gives the version now, and age is counted in versions.
        num_workers: turns judged and finished at once.
    """
    judging: list[asyncio.Task[T | None]] = []  # in the order they were claimed
    deferrals = Deferrals()
    try:
        while True:
            if room := num_workers - len(judging):
                claims = await store.claim(room, owner, rollout.lease_s, judged_only=bool(deferrals.pause_s))
                if deferrals.has_waiting:
                    random.shuffle(claims)  # the first finds out whether the judge is back: not always the same one
                for claim in claims:
                    reason = _why_not(claim.turn, policy_version, rollout.max_staleness)
                    judging.append(
                        asyncio.create_task(_take_one(store, judge, finish, claim, owner, reason, deferrals))
                    )
            if not judging:
                await asyncio.sleep(_POLL_S)
                continue
            await asyncio.wait(judging, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            done = [task for task in judging if task.done()]
            judging = [task for task in judging if not task.done()]
            for task in done:
                if (judged := task.result()) is not None:
                    yield judged
    finally:
        for task in judging:
            task.cancel()
        await asyncio.gather(*judging, return_exceptions=True)


async def _take_one(
    store: Store, judge: Judge, finish: Finish[T], claim: Claim, owner: str, why_not: str, deferrals: Deferrals
) -> T | None:
    """Take one claimed turn to a stored verdict and beyond; None when nothing of it can be trained, or not yet."""
    turn = claim.turn
    try:
        if why_not:
            deferrals.forget(turn.turn_id)
            await store.exclude([turn.turn_id], why_not)
            return None
        verdict = claim.verdict
        if verdict is None:
            judged = await _judged(store, judge, claim, owner, deferrals)
            if judged is None:
                return None
            turn, verdict = judged
        if not verdict.is_effective:
            return None
        finished = await finish(turn, verdict)
        if isinstance(finished, NotTrained):
            await store.exclude([turn.turn_id], finished.reason)
            return None
        return finished
    except LeaseLost as error:  # somebody else was quicker; theirs counts
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


def _why_not(turn: Turn, policy_version: Callable[[], int], max_staleness: int) -> str:
    if reason := why_not_trained(turn):
        return reason
    for version in {span.version for span in turn.completion.spans}:
        if isinstance(policy_version, PolicyVersion):
            staleness = policy_version.staleness(version)
        else:
            staleness = policy_version() - version
        if staleness > max_staleness:
            return f"stale: version {version} sampled it, {staleness} updates ago, and {max_staleness} are the most"
    return ""


async def judged_turns(
    store: Store,
    judge: Judge,
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    num_workers: int,
) -> AsyncIterator[tuple[Turn, Verdict]]:
    """Turns with their verdicts, as `finished_turns` finds them."""

    async def as_they_are(turn: Turn, verdict: Verdict) -> tuple[Turn, Verdict] | NotTrained:
        return turn, verdict

    turns = finished_turns(
        store,
        judge,
        as_they_are,
        owner=owner,
        policy_version=policy_version,
        rollout=rollout,
        num_workers=num_workers,
    )
    async with contextlib.aclosing(turns):
        async for judged in turns:
            yield judged


def sample_of(turn: Turn, verdict: Verdict) -> SampleGroup:
    """One judged turn as a group of its own; its source is whoever holds the credential it came with.

    Raises:
        ValueError: the verdict has no score.
    """
    if verdict.score is None:
        raise ValueError(f"turn {turn.turn_id} is unjudged")
    return group_of(ScoredTurn(turn, verdict.score))


def group_of(scored: ScoredTurn) -> SampleGroup:
    """One turn as a group of its own."""
    return SampleGroup(scored.turn.turn_id, stitch([scored], source=scored.turn.source))


async def judged_samples(
    store: Store,
    judge: Judge,
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    judging: JudgeConfig,
) -> AsyncIterator[SampleGroup]:
    """Every turn with a score as a sample: what Binary RL trains on. Close it to let go of what is being judged."""

    async def finish(turn: Turn, verdict: Verdict) -> SampleGroup | NotTrained:
        return sample_of(turn, verdict) if verdict.has_reward else NotTrained("it has a hint and no score")

    samples = finished_turns(
        store,
        judge,
        finish,
        owner=owner,
        policy_version=policy_version,
        rollout=rollout,
        num_workers=judging.num_judge_workers,
    )
    async with contextlib.aclosing(samples):
        async for group in samples:
            yield group
