"""Group baselines against torch's own means and deviations, by hand, and with rewards that are all equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.algorithms.advantages import (
    group_advantages,
    leave_one_out_advantages,
    standardized_advantages,
    step_wise_advantages,
)

Baseline = Callable[..., list[float]]
BASELINES = [group_advantages, standardized_advantages, leave_one_out_advantages]

rewards_of = st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=12)
sizes_of = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def test_uneven_groups_are_centred_each_by_itself() -> None:
    advantages = group_advantages([1.0, 0.0, -1.0, 0.5, 0.25, 9.0], ["a", "a", "a", "b", "b", "c"])
    assert advantages == [1.0, 0.0, -1.0, 0.125, -0.125, 0.0]


def test_groups_that_a_reshape_would_mix_up() -> None:
    rewards = [0.0, 0.0, 0.0, 4.0, 5.0, 5.0, 5.0, 1.0, 2.0, 3.0, 4.0]
    advantages = standardized_advantages(rewards, ["a"] * 4 + ["b"] * 3 + ["c"] * 4)
    assert advantages[4:7] == [0.0, 0.0, 0.0]
    assert advantages[:4] == [pytest.approx(a) for a in (-0.5, -0.5, -0.5, 1.5)]
    deviation = math.sqrt(5 / 3)
    assert advantages[7:] == [pytest.approx(a / (deviation + 1e-6)) for a in (-1.5, -0.5, 0.5, 1.5)]


def test_groups_need_not_lie_together() -> None:
    assert group_advantages([1.0, 5.0, 0.0, 7.0], ["a", "b", "a", "b"]) == [0.5, -1.0, -0.5, 1.0]


def test_a_member_with_several_rewards_counts_once() -> None:
    # member x earned 1 three times (one trajectory in three samples), y earned 0: the mean is 1/2, not 3/4
    given_rewards = ([1.0, 1.0, 1.0, 0.0], ["g"] * 4, ["x", "x", "x", "y"])
    assert group_advantages(*given_rewards) == [0.5, 0.5, 0.5, -0.5]
    assert leave_one_out_advantages(*given_rewards) == [1.0, 1.0, 1.0, -1.0]
    scale = math.sqrt(0.5) + 1e-6
    assert standardized_advantages(*given_rewards) == [pytest.approx(a / scale) for a in (0.5, 0.5, 0.5, -0.5)]


def test_a_spread_inside_the_members_is_divided_by_itself() -> None:
    """Two replies with process rewards (1, 0) and (0, 1): equal on average, and each of their steps ½ off the mean."""
    half = 0.5 / (0.5**0.5 + 1e-6)
    found = standardized_advantages([1.0, 0.0, 0.0, 1.0], ["g"] * 4, ["a", "a", "b", "b"])
    assert found == [pytest.approx(a) for a in (half, -half, -half, half)]


@settings(deadline=None)
@given(earned=st.lists(st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=1, max_size=5), min_size=2, max_size=6))
def test_no_advantage_is_larger_than_its_group_can_make_it(earned: list[list[float]]) -> None:
    rewards = [reward for of_member in earned for reward in of_member]
    members = [index for index, of_member in enumerate(earned) for _ in of_member]
    bound = (max(map(len, earned)) * (len(earned) - 1)) ** 0.5
    for advantage in standardized_advantages(rewards, ["g"] * len(rewards), members):
        assert abs(advantage) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_member_alone_has_nothing_to_be_compared_with(baseline: Baseline) -> None:
    assert baseline([1.0, -1.0, 1.0], ["g"] * 3, ["m"] * 3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("baseline", BASELINES)
@settings(deadline=None)
@given(reward=st.floats(-1e3, 1e3, allow_nan=False), sizes=sizes_of)
def test_equal_rewards_give_exactly_zero(baseline: Baseline, reward: float, sizes: list[int]) -> None:
    groups = [f"group {g}" for g, size in enumerate(sizes) for _ in range(size)]
    assert baseline([reward] * len(groups), groups) == [0.0] * len(groups)


@pytest.mark.parametrize("baseline", BASELINES)
@settings(deadline=None)
@given(rewards=rewards_of)
def test_the_advantages_of_a_group_sum_to_zero(baseline: Baseline, rewards: list[float]) -> None:
    total = sum(baseline(rewards, ["g"] * len(rewards)))
    assert total == pytest.approx(0.0, abs=1e-8 * len(rewards) * 1e3)


@settings(deadline=None)
@given(sizes=sizes_of, seed=st.integers(0, 99))
def test_each_baseline_against_torch_one_group_at_a_time(sizes: list[int], seed: int) -> None:
    parts = [torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + n)) for n in sizes]
    rewards = torch.cat(parts).tolist()
    groups = [index for index, size in enumerate(sizes) for _ in range(size)]

    def check(baseline: Baseline, of_one: Callable[[torch.Tensor], torch.Tensor]) -> None:
        expected = torch.cat([of_one(part) if len(part) > 1 else torch.zeros_like(part) for part in parts])
        torch.testing.assert_close(torch.tensor(baseline(rewards, groups), dtype=torch.float64), expected)

    check(group_advantages, lambda r: r - r.mean())
    check(standardized_advantages, lambda r: (r - r.mean()) / (r.std(unbiased=True) + 1e-6))
    check(leave_one_out_advantages, lambda r: r - (r.sum() - r) / (len(r) - 1))


@settings(deadline=None)
@given(sizes=sizes_of, seed=st.integers(0, 99), data=st.data())
def test_the_order_of_a_batch_does_not_matter(sizes: list[int], seed: int, data) -> None:
    total = sum(sizes)
    rewards = torch.randn(total, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).tolist()
    groups = [index for index, size in enumerate(sizes) for _ in range(size)]
    order = data.draw(st.permutations(range(total)))
    for baseline in BASELINES:
        straight = baseline(rewards, groups)
        turned = baseline([rewards[i] for i in order], [groups[i] for i in order])
        assert turned == [pytest.approx(straight[i], abs=1e-12) for i in order]


def test_steps_are_compared_with_the_same_step_of_others() -> None:
    # three attempts at one task: step 0 of all, step 1 of two that agree, step 2 of one
    rewards, steps = [1.0, 0.0, -1.0, 0.5, 0.5, 2.0], [0, 0, 0, 1, 1, 2]
    one = 1.0 / (1.0 + 1e-6)  # the bucket's deviation is 1
    assert step_wise_advantages(rewards, ["task"] * 6, steps) == [pytest.approx(one), 0.0, -one, None, None, 2.0]


def test_the_same_step_of_another_task_is_another_bucket() -> None:
    assert step_wise_advantages([1.0, -1.0], ["a", "b"], [0, 0]) == [1.0, -1.0]


def test_a_batch_of_constant_buckets_keeps_one_of_them() -> None:
    assert step_wise_advantages([1.0, 1.0, 2.0, 2.0], ["a", "a", "b", "b"], [0] * 4) == [0.0, 0.0, None, None]
