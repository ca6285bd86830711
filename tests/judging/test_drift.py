"""Figures of a judge and the alarm: closed forms, and how often it rings for nothing."""

from __future__ import annotations

import logging
import math
import random

import pytest
from judged_turns import turn_with
from slime.judging.drift import DriftAlarm, WatchedJudge, two_sample_z
from slime.judging.scripted import ScriptedJudge
from slime.types import Judgement, Verdict


def test_z_of_two_rates() -> None:
    """.5 of 200 against .8 of 100: √(.25/199 + .16/99) = .05360, so z = 5.5975."""
    first, second = [0.0, 1.0] * 100, [1.0] * 80 + [0.0] * 20
    assert two_sample_z(first, second) == pytest.approx(0.3 / math.sqrt(0.25 / 199 + 0.16 / 99))
    assert two_sample_z(first, second) == pytest.approx(5.5975, abs=1e-4)
    assert two_sample_z(second, first) == pytest.approx(-5.5975, abs=1e-4)
    assert two_sample_z([1.0] * 5, [1.0] * 5) == 0.0
    assert two_sample_z([1.0] * 5, [0.5] * 5) == -math.inf


def test_alarm_rings_once_loudly_and_says_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(3)
    alarm = DriftAlarm("positive_rate")

    def live(rate: float, count: int) -> None:
        for _ in range(count):
            alarm.add(float(rng.random() < rate))

    with caplog.at_level(logging.WARNING, logger="slime.judging.drift"):
        live(0.5, 500)
        assert (alarm.is_ringing, caplog.records) == (False, [])
        live(0.95, 300)
        assert alarm.is_ringing
        assert alarm.z > 4.5
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "positive_rate" in caplog.text
        live(0.5, 100)
        assert not alarm.is_ringing
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_judge_that_stays_the_same_hardly_ever_rings() -> None:
    rng = random.Random(11)
    rang = 0
    for _ in range(100):
        alarm = DriftAlarm("x")
        for _ in range(1200):
            alarm.add(float(rng.random() < 0.3))
            rang += alarm.is_ringing
    assert rang == 0, "1000 looks; one in 150 000 rings by chance"


async def test_watched_judge_passes_verdicts_on_and_counts_them() -> None:
    timed = (Judgement("llm", 1.0, latency_s=0.2), Judgement("llm", 1.0, latency_s=0.4))
    said = [
        Verdict(1.0, (1.0, 1.0, None), 1.0, judgements=timed),
        Verdict(-1.0, (-1.0, -1.0, 1.0), 2 / 3),
        Verdict(None, (None, None, None), 0.0),
        Verdict(0.0, (0.0,), 1.0),
    ]
    script = iter(said)
    judge = WatchedJudge(ScriptedJudge(lambda turn: next(script)))
    assert [await judge.judge(turn_with("Thanks!")) for _ in said] == said
    metrics = judge.metrics()
    assert metrics["judge/turns"] == 4
    assert metrics["judge/unjudged_rate"] == 0.25
    assert metrics["judge/failed_vote_rate"] == pytest.approx(4 / 10)
    assert metrics["judge/latency_s"] == pytest.approx(0.3)
    assert metrics["judge/score"] == pytest.approx(0.0)
    assert metrics["judge/positive_rate"] == pytest.approx(1 / 3)
    assert metrics["judge/agreement"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    entropy = -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    assert metrics["judge/vote_entropy"] == pytest.approx(entropy / 3)
    assert (metrics["judge/drift"], metrics["judge/drift_alarm"]) == (0.0, 0.0)
    assert judge.metrics() == {"judge/turns": 0, "judge/drift": 0.0, "judge/drift_alarm": 0.0}


async def test_a_judge_that_breaks_in_a_run_is_noticed() -> None:
    """Votes that agreed begin to split: agreement falls, entropy rises, both ring."""
    count = 0

    def script(turn: object) -> Verdict:
        nonlocal count
        count += 1
        return Verdict(1.0, (1.0,) * 3, 1.0) if count <= 300 else Verdict(1.0, (1.0, 1.0, -1.0), 2 / 3)

    judge = WatchedJudge(ScriptedJudge(script))
    for _ in range(300):
        await judge.judge(turn_with("Thanks!"))
    assert judge.metrics()["judge/drift_alarm"] == 0.0
    for _ in range(100):
        await judge.judge(turn_with("Thanks!"))
    assert [name for name, alarm in judge.alarms.items() if alarm.is_ringing] == ["agreement", "vote_entropy"]
    metrics = judge.metrics()
    assert metrics["judge/drift_alarm"] == 1.0
    assert math.isfinite(metrics["judge/drift"])


@pytest.mark.parametrize(
    ("votes", "bits"),
    [
        ((1.0, 1.0), 0.0),
        ((1.0, -1.0), 1.0),
        ((1.0, -1.0, None), 1.0),
        ((1.0, 0.0, -1.0), math.log2(3)),
        ((None,), 0.0),
        ((), 0.0),
    ],
)
def test_vote_entropy_is_shannons(votes: tuple[float | None, ...], bits: float) -> None:
    assert Verdict(None, votes).vote_entropy == pytest.approx(bits)
