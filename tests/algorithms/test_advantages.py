"""The moving baseline: zero for equal rewards, unbiased at group size one, the same after a restart; and whitening."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.algorithms.advantages import MovingBaseline, whiten

rewards_of = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=12)


@settings(deadline=None)
@given(reward=st.floats(-1e3, 1e3, allow_nan=False), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_equal_rewards_give_exactly_zero(reward, sizes) -> None:
    baseline = MovingBaseline(0.9)
    for size in sizes:
        advantages = baseline.advantages([reward] * (size + 1), ["ada"] * (size + 1))
        assert advantages == [0.0] * (size + 1)


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=12))
def test_whitening_against_torch(values) -> None:
    found = whiten(torch.tensor(values, dtype=torch.float64))
    if len(set(values)) == 1:
        assert found.tolist() == [0.0] * len(values)
    else:
        x = torch.tensor(values, dtype=torch.float64)
        torch.testing.assert_close(found, (x - x.mean()) / (x.var(unbiased=True) + 1e-8).sqrt(), atol=1e-8, rtol=1e-6)


def test_the_moving_average_by_hand() -> None:
    baseline = MovingBaseline(0.5)
    assert baseline.advantages([1.0], ["ada"]) == [1.0]  # nothing to compare with
    assert baseline.advantages([0.0], ["ada"]) == [-1.0]  # the past is 1
    # now the average is (1·½ + 0·1) / 1½ = ⅓
    assert baseline.advantages([1.0], ["ada"]) == [pytest.approx(2 / 3)]
    assert baseline.state()["ada"] == [pytest.approx((1 / 4 + 0 / 2 + 1) / (1 / 4 + 1 / 2 + 1)), 1.75]


def test_the_others_of_a_batch_count_as_one_each() -> None:
    baseline = MovingBaseline(0.9)
    assert baseline.advantages([1.0, -1.0, -1.0], ["ada"] * 3) == [2.0, -1.0, -1.0]


def test_sources_do_not_know_of_each_other() -> None:
    together, alone = MovingBaseline(0.9), MovingBaseline(0.9)
    mixed = together.advantages([1.0, 0.0, 3.0, 1.0], ["ada", "bob", "ada", "bob"])
    assert [mixed[0], mixed[2]] == alone.advantages([1.0, 3.0], ["ada", "ada"])
    assert [mixed[1], mixed[3]] == alone.advantages([0.0, 1.0], ["bob", "bob"])


@settings(deadline=None)
@given(rewards_of, rewards_of)
def test_a_restored_baseline_goes_on_bit_for_bit(before, after) -> None:
    first, second = MovingBaseline(0.9), MovingBaseline(0.9)
    first.advantages(before, ["ada"] * len(before))
    second.restore(json.loads(json.dumps(first.state())))
    assert first.advantages(after, ["ada"] * len(after)) == second.advantages(after, ["ada"] * len(after))
    assert first.state() == second.state()


def test_a_decay_of_one_would_remember_for_ever() -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        MovingBaseline(1.0)
