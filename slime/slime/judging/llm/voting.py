"""Several votes on one turn, and what they come to.

    n votes in parallel ─▶ Ballot × n ─▶ quorum? ─▶ one score with its share? ─▶ Verdict

A vote that failed is None and is never counted as anything: too few valid ones, or valid ones that disagree,
leave the turn unjudged. Where that is so only because the model was out, the verdict says when to ask again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.errors import EngineUnavailable
from slime.types import Verdict

RETRY_AFTER_S = "retry_after_s"
"""Where a verdict's details say that the judge was out, and in how many seconds to ask it again."""

LATE_RETRY_S = 1.0
"""The same for a judge that gave no answer in time and so did not say."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote.

    >>> Ballot(score=1.0, details={"answer": "They thank for it. \\\\boxed{1}", "latency_s": 0.4})

    Attributes:
        score: None when the vote failed.
        failure: why it did; empty otherwise.
        details: what to keep of it: the raw answer, how long it took.
        retry_after_s: the model was out; when to ask it again.
    """

    score: float | None
    failure: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: float | None = None


async def collect_votes(vote: Callable[[int], Awaitable[Ballot]], num_votes: int, timeout_s: float) -> list[Ballot]:
    """Cast `num_votes` votes at once, each within `timeout_s`; a vote that raises or is late has failed."""

    async def cast(index: int) -> Ballot:
        start = time.monotonic()
        retry_after_s: float | None = None
        try:
            async with asyncio.timeout(timeout_s):
                return await vote(index)
        except TimeoutError:
            failure, retry_after_s = f"no answer within {timeout_s:g} s", LATE_RETRY_S
        except Exception as error:  # the boundary: whatever goes wrong in a vote is a failed vote
            failure = f"{type(error).__name__}: {error}"
            if isinstance(error, EngineUnavailable):
                retry_after_s = error.retry_after_s
        return Ballot(None, failure, {"latency_s": time.monotonic() - start}, retry_after_s)

    return list(await asyncio.gather(*(cast(index) for index in range(num_votes))))


def quorum_of(quorum: int, num_votes: int) -> int:
    """Valid votes that are needed: `quorum`, or half of all where that is 0."""
    return quorum or max(1, math.ceil(num_votes / 2))


def retry_details(ballots: Sequence[Ballot], quorum: int) -> dict[str, float]:
    """When to ask again, if votes for which the model was out would have made a quorum; else nothing.

    >>> retry_details([Ballot(1.0), Ballot(None, "down", {}, 7.0), Ballot(None, "no box")], 2)
    {'retry_after_s': 7.0}
    """
    num_valid = sum(ballot.score is not None for ballot in ballots)
    waits = [ballot.retry_after_s for ballot in ballots if ballot.retry_after_s is not None]
    is_out = num_valid < quorum <= num_valid + len(waits)
    return {RETRY_AFTER_S: max(waits)} if is_out else {}


def count_votes(
    ballots: Sequence[Ballot], threshold: float, judge: str, asked: Mapping[str, Any], *, quorum: int = 0
) -> Verdict:
    """The score that most valid votes give, if enough votes are valid and `threshold` of those agree.

    Args:
        asked: what all votes were shown: `prompt` and `model`; kept with every judgement.
        quorum: valid votes that are needed; 0 = half of all.

    Returns:
        A verdict whose `details["judgements"]` hold one entry a vote, failed ones too, for the store to keep.

    >>> count_votes([Ballot(1.0), Ballot(1.0), Ballot(None, "timeout")], 0.5, "llm", {}).score
    1.0
    """
    votes = tuple(ballot.score for ballot in ballots)
    now = time.time()
    kept = [
        {"judge": judge, "created_at": now, **asked, "score": ballot.score, "failure": ballot.failure, **ballot.details}
        for ballot in ballots
    ]
    details = {"judgements": kept}
    valid = [score for score in votes if score is not None]
    quorum = quorum_of(quorum, len(ballots))
    if len(valid) < quorum:
        failures = "; ".join(sorted({ballot.failure for ballot in ballots if ballot.failure}))
        reason = f"{len(valid)} of {len(votes)} votes are valid, {quorum} are needed: {failures}"
        return Verdict(None, votes, 0.0, judge=judge, reason=reason, details=details | retry_details(ballots, quorum))
    [(score, count), *others] = Counter(valid).most_common()
    share = count / len(valid)
    said = ", ".join(f"{vote:g}" for vote in valid)
    if share < threshold or (others and others[0][1] == count):
        return Verdict(None, votes, share, judge=judge, reason=f"the votes disagree: {said}", details=details)
    return Verdict(score, votes, share, judge=judge, reason=f"votes: {said}", details=details)
