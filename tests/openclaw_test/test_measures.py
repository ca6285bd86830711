"""The figures of an evaluation against closed forms: criterion, intervals, repetition, divergence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest
import torch
from openclaw_test.report.divergence import kl_to
from openclaw_test.suites.measures import _T, over_seeds, repetition, sessions_to_criterion, share
from scripted_engine import ScriptedEngine
from slime.protocols import TokenScores


@pytest.mark.parametrize(
    ("kept", "sessions"),
    [("111", 3), ("0111", 4), ("110110111", 9), ("1101101", None), ("", None), ("000111111", 6)],
)
def test_the_criterion_is_met_by_the_third_in_a_row(kept: str, sessions: int | None):
    assert sessions_to_criterion([letter == "1" for letter in kept]) == sessions


def test_the_interval_over_seeds_is_students():
    values = [0.9, 0.8, 1.0, 0.7, 0.95]
    interval = over_seeds(values)
    half = 2.776 * math.sqrt(sum((v - 0.87) ** 2 for v in values) / 4) / math.sqrt(5)
    assert (interval.mean, interval.kind, interval.num) == (pytest.approx(0.87), "t", 5)
    assert interval.high - interval.mean == pytest.approx(half, rel=1e-6)
    assert over_seeds([0.4]).kind == "none"


def test_the_table_of_quantiles_cuts_off_a_fortieth_at_each_end():
    """The density of t, integrated with the trapezium rule, as a second way to the same numbers."""
    for freedom, quantile in enumerate(_T, start=1):
        log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        x = torch.linspace(0, quantile, 20_001, dtype=torch.float64)
        density = torch.exp(log_scale - (freedom + 1) / 2 * torch.log1p(x**2 / freedom))
        assert float(torch.trapezoid(density, x)) == pytest.approx(0.475, abs=5e-5), freedom


def test_wilsons_interval_solves_its_equation_and_stays_within_one():
    z = statistics.NormalDist().inv_cdf(0.975)
    for hits, num in ((0, 20), (7, 30), (99, 100), (50, 50)):
        interval = share(hits, num)
        assert 0 <= interval.low <= interval.mean <= interval.high <= 1
        for bound in (interval.low, interval.high):
            if 0 < bound < 1:  # where the observed share is z standard errors away from the true one
                assert abs(hits / num - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / num), rel=1e-9)


def test_repetition_counts_word_fours_that_came_before():
    assert repetition("a b c d e f") == 0
    assert repetition("yes " * 13) == pytest.approx(0.9)
    assert repetition("too short") == 0


class _Uniform(ScriptedEngine):
    """Scores every token alike."""

    def __init__(self, logprob: float) -> None:
        super().__init__(["x"])
        self.logprob = logprob

    async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> TokenScores:
        return TokenScores((self.logprob,) * (len(token_ids) - start), version=0)


async def test_the_divergence_is_the_mean_of_k3_and_nothing_from_a_model_to_itself():
    scored = [((1, 2, 3, 4), 1, (-1.0, -1.0, -1.0)), ((1, 2), 1, (-1.0,))]
    assert await kl_to(_Uniform(-1.0), scored) == 0
    assert await kl_to(_Uniform(-3.0), scored) == pytest.approx(math.exp(-2) + 2 - 1)
