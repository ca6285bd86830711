"""What a generate hook or a reward gave is looked at, sample by sample, before it becomes part of a group."""

from __future__ import annotations

import math

import pytest
from slime.compat.conversion import to_group, to_train_sample, why_not_trained
from slime.compat.sample import Sample
from slime.errors import PluginError


def sample(**changes: object) -> Sample:
    given = {
        "prompt": "p",
        "tokens": [1, 2, 3, 4],
        "response_length": 2,
        "rollout_log_probs": [-0.5, -1.0],
        "reward": 1.0,
    }
    return Sample(**{**given, "status": Sample.Status.COMPLETED, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rollout_log_probs": [math.nan, -1.0]}, "rollout_logprobs: nan is not finite"),
        ({"rollout_log_probs": [-math.inf, -1.0]}, "rollout_logprobs: -inf is not finite"),
        ({"rollout_log_probs": [3.0, -1.0]}, "rollout_logprobs: 3 is no log-prob of a sampled token"),
        ({"reward": math.nan}, "reward: nan is not finite"),
        ({"reward": 1e300}, "reward: 1e+300 is beyond ±1e+06"),
        ({"reward": "good"}, "reward: str is not a number"),
    ],
)
def test_a_sample_that_nothing_can_be_learned_from_is_left_out_of_its_group(changes: dict, reason: str) -> None:
    bad = sample(**changes)
    assert why_not_trained(bad).startswith(reason)
    made = to_group([sample(), bad, sample(reward=0.0)], group_id="g", temperature=1.0, version=0)
    assert made is not None
    assert [s.values["reward"] for s in made.samples] == [1.0, 0.0]


def test_what_does_not_train_may_be_anything() -> None:
    assert why_not_trained(sample(rollout_log_probs=[math.nan, -1.0], loss_mask=[0, 1])) == ""


def test_by_itself_a_sample_with_such_log_probs_is_refused() -> None:
    with pytest.raises(PluginError, match="nan is not finite"):
        to_train_sample(sample(rollout_log_probs=[-1.0, math.nan]), trajectory_id="t", temperature=1.0, version=0)
