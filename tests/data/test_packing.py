"""Plans: every sample once, no micro-batch too long, ranks about equal, the same on every rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from slime.data.packing import assign_to_ranks, pack, plan, split_evenly

lengths_of = st.lists(st.integers(1, 50), min_size=1, max_size=30)


@given(lengths_of, st.integers(1, 80))
def test_micro_batches_hold_every_sample_once_within_the_budget(lengths, max_tokens) -> None:
    bins = pack(lengths, max_tokens)
    assert sorted(index for micro in bins for index in micro) == list(range(len(lengths)))
    for micro in bins:
        assert len(micro) == 1 or sum(lengths[i] for i in micro) <= max_tokens


@given(lengths_of, st.integers(1, 80))
def test_no_two_micro_batches_would_fit_into_one(lengths, max_tokens) -> None:
    sizes = sorted(sum(lengths[i] for i in micro) for micro in pack(lengths, max_tokens))
    assert len(sizes) < 2 or sizes[0] + sizes[1] > max_tokens


@given(lengths_of, st.integers(1, 6))
def test_ranks_differ_by_no_more_than_the_longest_sample(lengths, world_size) -> None:
    ranks = assign_to_ranks(lengths, world_size)
    assert sorted(index for rank in ranks for index in rank) == list(range(len(lengths)))
    tokens = [sum(lengths[i] for i in rank) for rank in ranks]
    assert max(tokens) - min(tokens) <= max(lengths)
    assert ranks[0], "rank 0 never has nothing to do"


@given(lengths_of, st.integers(1, 80), st.integers(1, 4))
def test_a_plan_is_made_of_both(lengths, max_tokens, world_size) -> None:
    planned = plan(lengths, max_tokens, world_size)
    assert len(planned) == world_size
    assert sorted(i for rank in planned for micro in rank for i in micro) == list(range(len(lengths)))
    assert planned == plan(list(lengths), max_tokens, world_size)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=15), st.integers(1, 6))
def test_optimizer_steps_are_consecutive_and_none_is_empty(sizes, num_parts) -> None:
    runs = split_evenly(sizes, num_parts)
    assert [index for run in runs for index in run] == list(range(len(sizes)))
    assert len(runs) == min(num_parts, len(sizes))
    assert all(runs)


def test_equal_sizes_are_split_equally() -> None:
    assert [len(run) for run in split_evenly([3] * 16, 4)] == [4, 4, 4, 4]
