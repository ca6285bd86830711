"""Drift detection: compares a judge's recent verdicts with those of the run's beginning, and raises an alarm.

    Judge ◀─ WatchedJudge ─▶ verdict
                  │ each verdict
                  ├─▶ JudgeFigures   means since the last update      ─▶ metrics judge/…
                  └─▶ DriftAlarm     first 200 verdicts against the last 100, for
                                     positive rate, agreement, vote entropy  ─▶ metric judge/drift, one loud line

The test is the two-sample z test of means: z = (m₂ − m₁) / √(s₁²/n₁ + s₂²/n₂); for a rate it is the two-proportion
z test. It is looked at once per 100 new verdicts, so that looks do not overlap, and rings at |z| ≥ 4.5: by chance
alone, under the normal approximation, once in 150 000 looks at one figure.

A policy that learns is received better, and the positive rate then rings too: the alarm says that figures are not
comparable with those of the beginning, not whose merit or fault it is. A judge that fails says more of itself in
agreement and entropy.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slime.protocols import Judge
from slime.types import Turn, Verdict

log = logging.getLogger(__name__)

REFERENCE, RECENT = 200, 100
"""Verdicts of the beginning, and of now, that are compared."""
ALARM_Z = 4.5


@dataclass(slots=True)
class Moments:
    """Mean and variance of a sequence, one value at a time (Welford 1962)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)

    @property
    def variance(self) -> float:
        """The unbiased one; 0 for fewer than two values."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


def two_sample_z(first: Moments, second: Moments) -> float:
    """How many standard errors the second mean lies above the first; infinite where neither varies and they differ."""
    difference = second.mean - first.mean
    error = math.sqrt(first.variance / first.count + second.variance / second.count)
    if error == 0.0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / error


class DriftAlarm:
    """Watches one figure.

    Attributes:
        z: of the last look; 0 before the first.
        is_ringing: whether the last look was beyond the bound.
    """

    def __init__(self, name: str, reference: int = REFERENCE, recent: int = RECENT, bound: float = ALARM_Z) -> None:
        self.name = name
        self.z = 0.0
        self.is_ringing = False
        self._size = reference
        self._bound = bound
        self._reference = Moments()
        self._recent: deque[float] = deque(maxlen=recent)
        self._new = 0

    def add(self, value: float) -> None:
        """Take one value in; logs when the alarm starts to ring and when it ends."""
        if self._reference.count < self._size:
            self._reference.add(value)
            return
        self._recent.append(value)
        self._new += 1
        if self._new == self._recent.maxlen:
            self._new = 0
            self._look()

    def _look(self) -> None:
        recent = Moments()
        for value in self._recent:
            recent.add(value)
        self.z = two_sample_z(self._reference, recent)
        rings = abs(self.z) >= self._bound
        if rings and not self.is_ringing:
            log.error(
                "JUDGE DRIFT figure=%s at_first=%.3f now=%.3f z=%.1f: the judge, or what it judges, "
                "is not what it was; see docs/judging.md",
                *(self.name, self._reference.mean, recent.mean, self.z),
            )
        elif self.is_ringing and not rings:
            log.warning("judge drift over figure=%s now=%.3f z=%.1f", self.name, recent.mean, self.z)
        self.is_ringing = rings


@dataclass(slots=True)
class JudgeFigures:
    """Counts and sums since the last look; `take` gives the metrics and starts anew."""

    turns: int = 0
    unjudged: int = 0
    votes: int = 0
    failed_votes: int = 0
    latencies: list[float] = field(default_factory=list)
    scores: Moments = field(default_factory=Moments)
    positive: Moments = field(default_factory=Moments)
    agreement: Moments = field(default_factory=Moments)
    entropy: Moments = field(default_factory=Moments)

    def add(self, verdict: Verdict) -> None:
        self.turns += 1
        self.votes += len(verdict.votes)
        self.failed_votes += sum(vote is None for vote in verdict.votes)
        self.latencies += [judgement.latency_s for judgement in verdict.judgements if judgement.latency_s]
        if verdict.score is None:
            self.unjudged += 1
            return
        self.scores.add(verdict.score)
        self.positive.add(float(verdict.score > 0))
        self.agreement.add(verdict.agreement)
        self.entropy.add(verdict.vote_entropy)

    def metrics(self) -> dict[str, float]:
        """`judge/…`; rates only of what there was."""
        metrics: dict[str, float] = {"judge/turns": self.turns}
        if self.turns:
            metrics["judge/unjudged_rate"] = self.unjudged / self.turns
        if self.votes:
            metrics["judge/failed_vote_rate"] = self.failed_votes / self.votes
        if self.latencies:
            metrics["judge/latency_s"] = math.fsum(self.latencies) / len(self.latencies)
        if self.scores.count:
            metrics |= {
                "judge/score": self.scores.mean,
                "judge/positive_rate": self.positive.mean,
                "judge/agreement": self.agreement.mean,
                "judge/vote_entropy": self.entropy.mean,
            }
        return metrics


class WatchedJudge:
    """A judge whose verdicts are counted and watched for drift. Implements `protocols.Judge`."""

    def __init__(self, judge: Judge, alarm: Callable[[str], DriftAlarm] = DriftAlarm) -> None:
        self._judge = judge
        self._figures = JudgeFigures()
        self.alarms = {name: alarm(name) for name in ("positive_rate", "agreement", "vote_entropy")}

    async def judge(self, turn: Turn) -> Verdict:
        verdict = await self._judge.judge(turn)
        self._figures.add(verdict)
        if verdict.score is not None:
            self.alarms["positive_rate"].add(float(verdict.score > 0))
            self.alarms["agreement"].add(verdict.agreement)
            self.alarms["vote_entropy"].add(verdict.vote_entropy)
        return verdict

    def metrics(self) -> dict[str, float]:
        """The figures since the last call; `judge/drift` is the farthest, in standard errors, `…_alarm` 0 or 1."""
        figures, self._figures = self._figures, JudgeFigures()
        farthest = max((alarm.z for alarm in self.alarms.values()), key=abs)
        return figures.metrics() | {
            "judge/drift": max(-1e9, min(1e9, farthest)),  # infinity is not JSON
            "judge/drift_alarm": float(any(alarm.is_ringing for alarm in self.alarms.values())),
        }
