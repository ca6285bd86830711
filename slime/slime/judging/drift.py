"""Drift detection: compares a judge's recent verdicts with those of the run's beginning, and raises an alarm.

    Judge ◀─ WatchedJudge ─▶ verdict
                  │ each verdict
                  ├─▶ figures_of   means since the last update        ─▶ metrics judge/…
                  └─▶ DriftAlarm   first 200 verdicts against the last 100, for
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
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from statistics import fmean, mean, variance

from slime.protocols import Judge
from slime.types import Turn, Verdict

log = logging.getLogger(__name__)

REFERENCE, RECENT = 200, 100
"""Verdicts of the beginning, and of now, that are compared."""
ALARM_Z = 4.5


def two_sample_z(first: Sequence[float], second: Sequence[float]) -> float:
    """How many standard errors the second mean lies above the first; infinite where neither varies and they differ."""
    difference = mean(second) - mean(first)
    error = math.sqrt(variance(first) / len(first) + variance(second) / len(second))
    if error == 0.0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / error


class DriftAlarm:
    """Watches one figure.

    Attributes:
        z: of the last look; 0 before the first.
        is_ringing: whether the last look was beyond the bound.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.z = 0.0
        self.is_ringing = False
        self._reference: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._new = 0

    def add(self, value: float) -> None:
        """Take one value in; logs when the alarm starts to ring and when it ends."""
        if len(self._reference) < REFERENCE:
            self._reference.append(value)
            return
        self._recent.append(value)
        self._new += 1
        if self._new == RECENT:
            self._new = 0
            self._look()

    def _look(self) -> None:
        self.z = two_sample_z(self._reference, self._recent)
        rings, now = abs(self.z) >= ALARM_Z, fmean(self._recent)
        if rings and not self.is_ringing:
            log.error(
                "JUDGE DRIFT figure=%s at_first=%.3f now=%.3f z=%.1f: the judge, or what it judges, "
                "is not what it was; see docs/judging.md",
                *(self.name, fmean(self._reference), now, self.z),
            )
        elif self.is_ringing and not rings:
            log.warning("judge drift over figure=%s now=%.3f z=%.1f", self.name, now, self.z)
        self.is_ringing = rings


def figures_of(verdict: Verdict) -> dict[str, list[float]]:
    """What a verdict adds to each figure; of a rate's values each is 0 or 1."""
    figures = {
        "unjudged_rate": [float(verdict.score is None)],
        "failed_vote_rate": [float(vote is None) for vote in verdict.votes],
        "latency_s": [judgement.latency_s for judgement in verdict.judgements if judgement.latency_s],
    }
    if verdict.score is not None:
        figures["score"] = [verdict.score]
        figures["positive_rate"] = [float(verdict.score > 0)]
        figures["agreement"] = [verdict.agreement]
        figures["vote_entropy"] = [verdict.vote_entropy]
    return figures


class WatchedJudge:
    """A judge whose verdicts are counted and watched for drift. Implements `protocols.Judge`."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self.alarms = {name: DriftAlarm(name) for name in ("positive_rate", "agreement", "vote_entropy")}

    async def judge(self, turn: Turn) -> Verdict:
        verdict = await self._judge.judge(turn)
        for name, values in figures_of(verdict).items():
            self._sums[name] += math.fsum(values)
            self._counts[name] += len(values)
            if name in self.alarms:
                self.alarms[name].add(values[0])
        return verdict

    def metrics(self) -> dict[str, float]:
        """The figures since the last call, rates only of what there was.

        `judge/drift` is the farthest alarm, in standard errors, `judge/drift_alarm` 0 or 1.
        """
        means = {f"judge/{name}": self._sums[name] / count for name, count in self._counts.items() if count}
        num_turns = self._counts["unjudged_rate"]
        self._sums.clear()
        self._counts.clear()
        farthest = max((alarm.z for alarm in self.alarms.values()), key=abs)
        return means | {
            "judge/turns": num_turns,
            "judge/drift": max(-1e9, min(1e9, farthest)),  # infinity is not JSON
            "judge/drift_alarm": float(any(alarm.is_ringing for alarm in self.alarms.values())),
        }
