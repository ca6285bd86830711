"""The metrics of an evaluation with their confidence intervals.

first replies ─▶ sessions_to_criterion (the paper's metric), repetition
shares, means ─▶ Interval: Wilson's for one share of n, Student's t over seeds
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

IN_A_ROW = 3
"""Consecutive sessions that must keep a rule until it counts as learned."""

_Z = statistics.NormalDist().inv_cdf(0.975)
# Two-sided 95 % quantiles of Student's t for 1, 2, … 30 degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % confidence interval.

    >>> Interval(mean=0.9, low=0.83, high=0.97, num=5, kind="t")

    Attributes:
        num: the sample size: seeds for `t`, replies for `wilson`.
        kind: `t` (Student, over seeds), `wilson` (one proportion), or `none` for a single value, where low = high.
    """

    mean: float
    low: float
    high: float
    num: int
    kind: str


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean of one value per seed with Student's t interval; raises ValueError when empty."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, mean, mean, 1, "none")
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else _Z
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values), "t")


def share(num_hits: int, num: int) -> Interval:
    """A proportion of independent trials with Wilson's interval, which stays within 0 and 1 (Wilson 1927).

    >>> share(0, 20).high < 0.17
    True
    """
    if num < 1:
        raise ValueError("a share needs at least one trial")
    rate = num_hits / num
    scale = 1 + _Z**2 / num
    centre = (rate + _Z**2 / (2 * num)) / scale
    half = _Z / scale * math.sqrt(rate * (1 - rate) / num + _Z**2 / (4 * num**2))
    return Interval(rate, max(0.0, centre - half), min(1.0, centre + half), num, "wilson")


def sessions_to_criterion(is_kept: Sequence[bool], in_a_row: int = IN_A_ROW) -> int | None:
    """The number of sessions until `in_a_row` consecutive ones kept the rule; None if that never happened.

    >>> sessions_to_criterion([False, True, True, False, True, True, True, False])
    7
    """
    run = 0
    for number, kept in enumerate(is_kept, start=1):
        run = run + 1 if kept else 0
        if run == in_a_row:
            return number
    return None


def repetition(text: str, size: int = 4) -> float:
    """The share of a text's word 4-grams that are repeats; 0 for a text with fewer than two.

    >>> repetition("a b c d a b c d")
    0.2
    """
    words = text.split()
    grams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0
