"""Rows and flat batches: what the model is fed, where its predictions are read, and what stands where a field lacks."""

from __future__ import annotations

import pytest
import torch
from slime.data.outcomes import outcomes
from slime.data.rows import flatten, rows
from slime.errors import PluginError
from slime.fields import register_field
from slime.types import Batch, Sample, SampleGroup


def sample_of(token_ids, mask, *, streams=None, reward=1.0, **labels) -> Sample:
    streams = {"loss_mask": mask, "rollout_logprobs": tuple(-0.01 * i for i in token_ids), **(streams or {})}
    return Sample(token_ids, streams, {"reward": reward, "temperature": 0.5}, ("t",), **labels)


def test_five_tokens_are_fed_up_to_the_last_that_trains() -> None:
    (row,) = rows([sample_of((11, 12, 13, 14, 15), (0, 0, 1, 1, 0))])
    assert row.token_ids.tolist() == [11, 12, 13]  # 14 is only predicted, 15 is neither
    assert row.predictors.tolist() == [1, 2]
    assert row.targets.tolist() == [13, 14]
    torch.testing.assert_close(row.streams["rollout_logprobs"], torch.tensor([-0.13, -0.14]))
    assert row.streams["temperature"].tolist() == [0.5, 0.5]
    assert row.streams["policy_versions"].tolist() == [-1, -1]
    assert row.streams["policy_versions"].dtype == torch.int64
    assert row.streams["loss_mask"].tolist() == [True, True]


def test_rows_lie_end_to_end_with_positions_of_their_own() -> None:
    flat = flatten(rows([sample_of((1, 2, 3), (0, 1, 1)), sample_of((4, 5, 6, 7), (0, 0, 0, 1))]))
    assert flat.token_ids.tolist() == [1, 2, 4, 5, 6]
    assert flat.position_ids.tolist() == [0, 1, 0, 1, 2]
    assert flat.document_lens == (2, 3)
    assert flat.predictors.tolist() == [0, 1, 4]
    assert flat.targets.tolist() == [2, 3, 7]
    assert flat.counts == (2, 1)


def test_a_sample_that_lacks_a_field_is_filled_and_takes_nothing_from_the_others() -> None:
    register_field("test_bonus", level="token", fill=-7.0)
    register_field("test_weight", level="sample", fill=3.0)
    with_field = Sample((1, 2), {"loss_mask": (0, 1), "test_bonus": (0.0, 2.5)}, {"test_weight": 4.0}, ())
    without = Sample((1, 2), {"loss_mask": (0, 1)}, {}, ())
    flat = flatten(rows([with_field, without]))
    assert flat.streams["test_bonus"].tolist() == [2.5, -7.0]
    assert flat.streams["test_weight"].tolist() == [4.0, 3.0]


def test_rows_of_k_keep_their_width() -> None:
    register_field("test_topk", level="token_k", dtype="int64", fill=-1)
    with_field = Sample((1, 2, 3), {"loss_mask": (0, 1, 1), "test_topk": ((), (5, 6), (7, 8))}, {}, ())
    without = Sample((1, 2), {"loss_mask": (0, 1)}, {}, ())
    flat = flatten(rows([without, with_field]))
    assert flat.streams["test_topk"].tolist() == [[-1, -1], [5, 6], [7, 8]]
    assert flatten(rows([without])).streams["test_topk"].shape == (1, 0)
    with_none = Sample((1, 2, 3), {"loss_mask": (0, 1, 1), "test_topk": ((), (), ())}, {}, ())
    assert flatten(rows([with_none])).streams["test_topk"].shape == (2, 0)


def test_a_field_that_nobody_declared_is_refused_with_the_nearest() -> None:
    with pytest.raises(PluginError, match="did you mean rollout_logprobs"):
        rows([sample_of((1, 2), (0, 1), streams={"rollout_logprob": (0.0, 0.0)})])


def test_turns_of_a_session_are_outcomes_of_their_own() -> None:
    session = sample_of(
        (1, 2, 3, 4),
        (0, 1, 0, 1),
        streams={"rewards": (0.0, 1.0, 0.0, -1.0), "turn_index": (-1, 0, -1, 1)},
        trajectory_id="s",
        source="ada",
    )
    found = outcomes(Batch((SampleGroup("g", (session,)),)))
    assert [(outcome.reward, outcome.tokens) for outcome in found] == [(1.0, ((0, 1),)), (-1.0, ((0, 3),))]
    assert {(outcome.group_id, outcome.member_id, outcome.source) for outcome in found} == {("g", "s", "ada")}


def test_one_reward_of_a_trajectory_in_two_samples_is_one_outcome() -> None:
    parts = tuple(sample_of((1, 2), (0, 1), reward=0.5, trajectory_id="episode") for _ in range(2))
    other = sample_of((1, 2, 3), (0, 1, 1), reward=0.5, trajectory_id="another")
    batch = Batch((SampleGroup("g", (*parts, other)),))
    found = outcomes(batch)
    assert [outcome.tokens for outcome in found] == [((0, 1), (1, 1)), ((2, 1), (2, 2))]


def test_samples_without_a_trajectory_are_each_their_own() -> None:
    batch = Batch((SampleGroup("g", (sample_of((1, 2), (0, 1)), sample_of((1, 2), (0, 1)))),))
    assert [outcome.member_id for outcome in outcomes(batch)] == ["sample 0", "sample 1"]
