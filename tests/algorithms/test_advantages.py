"""Baselines: zero for equal rewards, right for uneven groups, unbiased at group size one, the same after a restart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.algorithms.advantages import MovingBaseline
from slime.algorithms.groups import group_advantages

rewards_of = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=12)


def test_uneven_groups_are_centred_each_by_itself() -> None:
    advantages = group_advantages([1.0, 0.0, -1.0, 0.5, 0.25, 9.0], ["a", "a", "a", "b", "b", "c"])
    assert advantages == [1.0, 0.0, -1.0, 0.125, -0.125, 0.0]


def test_groups_need_not_lie_together() -> None:
    assert group_advantages([1.0, 5.0, 0.0, 7.0], ["a", "b", "a", "b"]) == [0.5, -1.0, -0.5, 1.0]


def test_a_member_with_several_rewards_counts_once() -> None:
    # member x earned 1 three times (one trajectory in three samples), y earned 0: the mean is 1/2, not 3/4
    advantages = group_advantages([1.0, 1.0, 1.0, 0.0], ["g"] * 4, ["x", "x", "x", "y"])
    assert advantages == [0.5, 0.5, 0.5, -0.5]


@given(reward=st.floats(-1e3, 1e3, allow_nan=False), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_equal_rewards_give_exactly_zero(reward, sizes) -> None:
    groups = [f"group {g}" for g, size in enumerate(sizes) for _ in range(size)]
    assert group_advantages([reward] * len(groups), groups) == [0.0] * len(groups)
    baseline = MovingBaseline(0.9)
    for size in sizes:
        advantages = baseline.advantages([reward] * (size + 1), ["ada"] * (size + 1))
        assert advantages == [0.0] * (size + 1)


@given(rewards_of)
def test_the_advantages_of_a_group_sum_to_zero(rewards) -> None:
    assert sum(group_advantages(rewards, ["g"] * len(rewards))) == pytest.approx(0.0, abs=1e-9 * len(rewards) * 1e3)


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
