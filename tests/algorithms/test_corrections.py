"""Corrections by hand, against loops over tokens, and exact where they are unbiased."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.algorithms.corrections import behaviour_weights, off_policy_sequence_mask, veto_mask
from slime.algorithms.reductions import sequence_means, sequence_sums
from torch import Tensor


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


PROXIMAL = column(-1.0, -2.0, -0.5, -3.0, -0.1)
ROLLOUT = column(-2.0, -1.0, -0.5, -2.0, -1.3)
SEQUENCES = torch.tensor([0, 0, 1, 1, 1])
LOGS = (1.0, -1.0, 0.0, -1.0, 1.2)


def weights(level: str, mode: str, low: float = 0.5, high: float = 2.0) -> list[float]:
    return behaviour_weights(PROXIMAL, ROLLOUT, SEQUENCES, level=level, mode=mode, low=low, high=high).tolist()


def approx(*values: float) -> list[float]:
    return [pytest.approx(value) for value in values]


def test_weights_of_tokens() -> None:
    assert weights("token", "truncate") == approx(2.0, math.exp(-1), 1.0, math.exp(-1), 2.0)
    assert weights("token", "clip") == approx(2.0, 0.5, 1.0, 0.5, 2.0)
    assert weights("token", "mask") == approx(0.0, 0.0, 1.0, 0.0, 0.0)


def test_weights_of_sequences() -> None:
    first, second = math.exp(0.0), math.exp(0.2)
    assert weights("sequence", "mask") == approx(first, first, second, second, second)
    geometric = math.exp(0.2 / 3)
    assert weights("geometric", "truncate", high=1.05) == approx(1.0, 1.0, 1.05, 1.05, 1.05)
    assert weights("geometric", "clip") == approx(1.0, 1.0, geometric, geometric, geometric)


def test_a_rejected_sequence_is_rejected_as_a_whole() -> None:
    assert weights("sequence", "mask", high=1.1) == approx(1.0, 1.0, 0.0, 0.0, 0.0)


def test_weights_are_constants() -> None:
    proximal = PROXIMAL.clone().requires_grad_()
    assert not behaviour_weights(proximal, ROLLOUT, SEQUENCES, level="token", mode="clip", low=0, high=9).requires_grad


def test_weights_of_very_long_sequences_stay_finite() -> None:
    far = torch.zeros(4000, dtype=torch.float64)
    sequence = torch.zeros(4000, dtype=torch.int64)
    found = behaviour_weights(far, far - 1.0, sequence, level="sequence", mode="clip", low=0.0, high=math.inf)
    assert found[0].item() == pytest.approx(math.exp(20.0))


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mode", ["truncate", "clip", "mask"])
@settings(deadline=None)
@given(
    tokens=st.lists(st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.integers(0, 3)), min_size=1, max_size=10),
    low=st.floats(0, 1),
    high=st.floats(1, 3),
)
def test_weights_against_a_loop(level: str, mode: str, tokens, low: float, high: float) -> None:
    p, b, names = zip(*tokens, strict=True)
    expected = []
    for name in names:
        logs = [x - y for x, y, other in zip(p, b, names, strict=True) if other == name]
        own = p[len(expected)] - b[len(expected)]
        log = {"token": own, "sequence": sum(logs), "geometric": sum(logs) / len(logs)}[level]
        weight = math.exp(max(-20.0, min(20.0, log)))
        near_bound = min(abs(weight - low), abs(weight - high)) < 1e-9
        if mode == "mask" and not low <= weight <= high and not near_bound:
            weight = 0.0
        elif mode != "mask":
            weight = min(weight, high) if mode == "truncate" else min(max(weight, low), high)
        expected.append(None if mode == "mask" and near_bound else weight)
    found = behaviour_weights(column(*p), column(*b), torch.tensor(names), level=level, mode=mode, low=low, high=high)
    for value, wanted in zip(found.tolist(), expected, strict=True):
        assert wanted is None or value == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def test_weighted_by_the_product_an_average_over_the_behaviour_is_one_over_the_policy() -> None:
    """All sequences of two tokens of three ids: Σ b·w·f = Σ p·f, exactly."""
    torch.manual_seed(0)
    p, b = torch.log_softmax(torch.randn(2, 2, 3, dtype=torch.float64), -1)
    f = torch.randn(3, 3, dtype=torch.float64)
    under_behaviour = under_policy = 0.0
    for i in range(3):
        for j in range(3):
            proximal, rollout = torch.stack([p[0, i], p[1, j]]), torch.stack([b[0, i], b[1, j]])
            weight = behaviour_weights(
                proximal, rollout, torch.tensor([0, 0]), level="sequence", mode="truncate", low=0.0, high=math.inf
            )
            under_behaviour += float(rollout.sum().exp() * weight[0] * f[i, j])
            under_policy += float(proximal.sum().exp() * f[i, j])
    assert under_behaviour == pytest.approx(under_policy, abs=1e-12)


def test_bad_replies_left_behind_are_masked_and_good_ones_are_not() -> None:
    policy, rollout = column(-1.5, -1.5, -1.5, -1.5), column(-1.0, -1.4, -1.0, -1.4)  # means left behind: 0.3 each
    index, advantages = torch.tensor([0, 0, 1, 1]), column(-1.0, -1.0, 1.0, 1.0)
    assert off_policy_sequence_mask(policy, rollout, advantages, index, 0.29).tolist() == [False, False, True, True]
    assert off_policy_sequence_mask(policy, rollout, advantages, index, 0.31).tolist() == [True] * 4
    assert off_policy_sequence_mask(rollout, policy, advantages, index, 0.1).tolist() == [True] * 4, "it came closer"


def test_one_impossible_token_vetoes_its_sequence_and_no_other() -> None:
    """p/b is e^1, e^−1 in the first sequence and 1, e^−1, e^1.2 in the second."""

    def vetoed(threshold: float) -> list[bool]:
        return (~veto_mask(PROXIMAL, ROLLOUT, SEQUENCES, threshold)).tolist()

    assert vetoed(math.exp(-1) * 1.001) == [True] * 5
    assert vetoed(math.exp(-1) * 0.999) == [False] * 5
    far = torch.where(torch.arange(5) == 3, PROXIMAL - 8.0, PROXIMAL)
    mask = veto_mask(far, ROLLOUT, SEQUENCES, 1e-3)
    assert mask.tolist() == [True, True, False, False, False]
    assert veto_mask(far[[3, 0, 4, 1, 2]], ROLLOUT[[3, 0, 4, 1, 2]], SEQUENCES[[3, 0, 4, 1, 2]], 1e-3).tolist() == [
        False,
        True,
        False,
        True,
        False,
    ], "sequences need not lie together"


def test_sums_and_means_over_sequences_that_do_not_lie_together() -> None:
    values, index = column(1.0, 2.0, 3.0, 4.0), torch.tensor([1, 0, 1, 1])
    assert sequence_sums(values, index).tolist() == [8.0, 2.0, 8.0, 8.0]
    assert sequence_means(values, index).tolist() == approx(8 / 3, 2.0, 8 / 3, 8 / 3)
    assert sequence_sums(values[:0], index[:0]).tolist() == []
