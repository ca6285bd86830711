"""Samples from conversations that are going on.

    Store ──claim──▶ Turn with its next state ──judge──▶ Verdict ──▶ stored ──▶ Sample ──▶ the caller
                       │ too old, or not to be trained      │ unjudged, or score 0
                       └────────────▶ excluded, with the reason ◀┘

A turn is held under a lease from the claim until the update that consumes it; a collector that dies
lets go of it, and what was judged by then is not judged again. Several turns are judged at once, and
the serving side never waits for any of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from slime.config import JudgeConfig, RolloutConfig
from slime.data.stitching import ScoredTurn, stitch, why_not_trained
from slime.errors import LeaseLost
from slime.protocols import Judge
from slime.store import Claim, Store
from slime.types import SampleGroup, Turn, Verdict

log = logging.getLogger(__name__)

_POLL_S = 0.2
"""How soon a turn is noticed after its next state was stored."""


async def judged_turns(
    store: Store,
    judge: Judge,
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    num_workers: int,
) -> AsyncIterator[tuple[Turn, Verdict]]:
    """Turns that may be trained, with verdicts that say something, as they become known; endless.

    Args:
        owner: who holds the leases; a collector started again under the same name may release its old ones.
        policy_version: the trainer's version now; turns more than `rollout.max_staleness` older are excluded.
        num_workers: turns judged at once.
    """
    judging: list[asyncio.Task[tuple[Turn, Verdict] | None]] = []  # in the order they were claimed
    try:
        while True:
            if room := num_workers - len(judging):
                for claim in await store.claim(room, owner, rollout.lease_s):
                    oldest = policy_version() - rollout.max_staleness
                    judging.append(asyncio.create_task(_judge_one(store, judge, claim, owner, oldest)))
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


async def _judge_one(store: Store, judge: Judge, claim: Claim, owner: str, oldest: int) -> tuple[Turn, Verdict] | None:
    """Take one claimed turn to a stored verdict; None when nothing of it can be trained."""
    turn = claim.turn
    try:
        if reason := _why_not(turn, oldest):
            await store.exclude([turn.turn_id], reason)
            return None
        if claim.verdict is not None:
            return turn, claim.verdict
        verdict = await judge.judge(turn)
        await store.record_verdict(turn.turn_id, verdict, owner)
    except LeaseLost as error:  # somebody else was quicker; theirs counts
        log.warning("lease lost turn=%s error=%s", turn.turn_id, error)
        return None
    # Not the reason, which may quote the person: that is stored with the verdict.
    log.info("turn judged turn=%s score=%s judge=%s", turn.turn_id, verdict.score, verdict.judge)
    return (turn, verdict) if verdict.is_effective else None


def _why_not(turn: Turn, oldest: int) -> str:
    if reason := why_not_trained(turn):
        return reason
    if turn.completion.spans[0].version < oldest:
        return f"stale: sampled by version {turn.completion.spans[0].version}, oldest trained is {oldest}"
    return ""


def sample_of(turn: Turn, verdict: Verdict) -> SampleGroup:
    """One judged turn as a group of its own; its source is whoever holds the credential it came with.

    Raises:
        ValueError: the verdict has no score.
    """
    if verdict.score is None:
        raise ValueError(f"turn {turn.turn_id} is unjudged")
    source = str(turn.details.get("source", ""))
    return SampleGroup(turn.turn_id, stitch([ScoredTurn(turn, verdict.score)], source=source))


async def judged_samples(
    store: Store,
    judge: Judge,
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    judging: JudgeConfig,
) -> AsyncIterator[SampleGroup]:
    """Every effective turn as a sample: what Binary RL trains on. Close it to let go of what is being judged."""
    turns = judged_turns(
        store,
        judge,
        owner=owner,
        policy_version=policy_version,
        rollout=rollout,
        num_workers=judging.num_judge_workers,
    )
    async for turn, verdict in turns:
        yield sample_of(turn, verdict)
