"""The mean over a trajectory's tokens, then over trajectories, however the tokens are handed over."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.algorithms.reductions import Reduction, num_trajectories, sum_of_means, trajectory_sizes


def test_five_tokens_in_two_trajectories_by_hand() -> None:
    # trajectory a: samples of 1 and 2 tokens; b: one of 2. ((1 + 2 + 3)/3 + (4 + 5)/2) / 2 = 3.25
    names, counts = ["a", "a", "b"], [1, 2, 2]
    weights = Reduction().weights(trajectory_sizes(names, counts), counts)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    assert float(sum_of_means(values, weights)) / num_trajectories(names, counts) == 3.25


def test_what_trains_nothing_dilutes_nothing() -> None:
    names, counts = ["a", "b", "b"], [2, 0, 0]
    assert num_trajectories(names, counts) == 1
    weights = Reduction().weights(trajectory_sizes(names, counts), counts)
    assert float(sum_of_means(torch.tensor([1.0, 3.0]), weights)) == 2.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), min_size=1, max_size=8), st.data())
def test_any_split_into_micro_batches_sums_to_the_same(samples, data) -> None:
    names, counts = [name for name, _ in samples], [count for _, count in samples]
    sizes = trajectory_sizes(names, counts)
    values = torch.arange(sum(counts), dtype=torch.float64) ** 2
    parts = list(torch.split(values, counts))
    whole = sum_of_means(values, Reduction().weights(sizes, counts))
    order = data.draw(st.permutations(range(len(samples))))
    cut = data.draw(st.integers(0, len(samples)))
    total = sum(
        float(
            sum_of_means(
                torch.cat([parts[i] for i in micro]),
                Reduction().weights([sizes[i] for i in micro], [counts[i] for i in micro]),
            )
        )
        for micro in (order[:cut], order[cut:])
        if micro
    )
    torch.testing.assert_close(torch.tensor(total, dtype=torch.float64), whole)
