"""From batches to advantages on tokens, worked out by hand: sessions, groups, steps, the KL in the reward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.algorithms.advantages import MovingBaseline
from slime.config.checks.contradictions import check_loss_settings
from slime.config.sections import LossConfig
from slime.data.estimates import with_advantages
from slime.errors import ConfigError
from slime.types import Batch, Sample, SampleGroup

ESTIMATORS = [
    *("reinforce", "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
    *("gspo", "cispo", "ppo", "step_wise"),
]


def session(scores: list[float], name: str = "ada", **streams: Any) -> Sample:
    """A prompt token, then for each score a turn of two tokens, with a prompt token between turns."""
    mask, rewards, index = [0], [0.0], [-1]
    for turn, score in enumerate(scores):
        mask += [1, 1, 0]
        rewards += [score, score, 0.0]
        index += [turn, turn, -1]
    known = {"loss_mask": mask, "rewards": rewards, "turn_index": index, "rollout_logprobs": [-1.0] * len(mask)}
    return Sample(tuple(range(len(mask))), {**known, **streams}, {"temperature": 1.0}, (), name, name)


def reply(reward: float, name: str = "", **values: float) -> Sample:
    """A prompt token and two tokens with one reward."""
    streams = {"loss_mask": [0, 1, 1], "rollout_logprobs": [0.0, -1.0, -1.0]}
    return Sample((1, 2, 3), streams, {"reward": reward, "temperature": 1.0, **values}, (), name, "ada")


def batch_of(*groups: list[Sample]) -> Batch:
    return Batch(tuple(SampleGroup(f"group {i}", tuple(samples)) for i, samples in enumerate(groups)))


def stream(batch: Batch, name: str = "advantages", **changes: Any) -> list[list[float]]:
    """One stream of each sample over its trainable tokens."""
    samples, _ = with_advantages(batch, LossConfig(**changes), MovingBaseline(0.9))
    return [
        [value for value, flag in zip(s.streams[name], s.streams["loss_mask"], strict=True) if flag] for s in samples
    ]


def approx(rows: list[list[float]]) -> list[list[Any]]:
    return [[pytest.approx(value, abs=1e-9) for value in row] for row in rows]


GROUPED = batch_of([reply(1.0), reply(0.0), reply(0.0)], [reply(5.0), reply(5.0)], [reply(3.0)])
DEVIATION = 3**-0.5 + 1e-6


@pytest.mark.parametrize(
    ("estimator", "of_first"),
    [
        ("grpo", [2 / 3 / DEVIATION, -1 / 3 / DEVIATION, -1 / 3 / DEVIATION]),
        ("gspo", [2 / 3 / DEVIATION, -1 / 3 / DEVIATION, -1 / 3 / DEVIATION]),
        ("cispo", [2 / 3 / DEVIATION, -1 / 3 / DEVIATION, -1 / 3 / DEVIATION]),
        ("dr_grpo", [2 / 3, -1 / 3, -1 / 3]),
        ("rloo", [1.0, -0.5, -0.5]),
    ],
)
def test_groups(estimator: str, of_first: list[float]) -> None:
    expected = [[a, a] for a in (*of_first, 0.0, 0.0, 0.0)]
    assert stream(GROUPED, advantage_estimator=estimator) == approx(expected)
    assert stream(GROUPED, "returns", advantage_estimator=estimator) == approx(expected)


def test_the_deviation_can_be_left_out() -> None:
    found = stream(GROUPED, advantage_estimator="grpo", grpo_std_normalization=False)
    assert found == stream(GROUPED, advantage_estimator="dr_grpo")


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "gspo", "cispo"])
def test_rewards_that_are_not_normalised_are_the_advantages(estimator: Any) -> None:
    found = stream(GROUPED, advantage_estimator=estimator, rewards_normalization=False)
    assert found == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [5.0, 5.0], [5.0, 5.0], [3.0, 3.0]]
    config = LossConfig(advantage_estimator=estimator, rewards_normalization=False)
    check_loss_settings(config)
    assert not config.compares_groups, "so people's turns may be trained with it"


@pytest.mark.parametrize("estimator", ["reinforce", "rloo", "step_wise"])
def test_what_always_subtracts_cannot_take_rewards_as_they_are(estimator: Any) -> None:
    with pytest.raises(ConfigError, match="--no-rewards-normalization takes rewards as they are"):
        check_loss_settings(LossConfig(advantage_estimator=estimator, rewards_normalization=False))
    check_loss_settings(LossConfig(baseline="none", rewards_normalization=False))
    check_loss_settings(LossConfig(advantage_estimator="ppo", rewards_normalization=False))


def test_the_baselines_of_plain_reinforce() -> None:
    batch = batch_of([reply(1.0), reply(0.0)])
    assert stream(batch, baseline="none") == [[1.0, 1.0], [0.0, 0.0]]
    assert stream(batch, baseline="group") == [[0.5, 0.5], [-0.5, -0.5]]
    assert stream(batch, baseline="ema") == [[1.0, 1.0], [-1.0, -1.0]]


def test_what_comes_later_counts_for_earlier_turns() -> None:
    """ppo by hand, γ = λ = ½, with the critic's values before each turn."""
    values = [9.0, 1.0, 9.0, 9.0, 2.0, 9.0, 9.0]  # only those of a turn's first token are read
    batch = batch_of([session([1.0, 3.0], old_values=values)])
    # δ₁ = 1 + ½·2 − 1 = 1, δ₂ = 3 − 2 = 1: A₂ = 1, A₁ = 1 + ¼
    changes = {"advantage_estimator": "ppo", "gamma": 0.5, "lambd": 0.5}
    assert stream(batch, **changes) == [[1.25, 1.25, 1.0, 1.0]]
    assert stream(batch, "returns", **changes) == [[2.25, 2.25, 3.0, 3.0]]
    whitened = {**changes, "normalize_advantages": True}
    assert stream(batch, "returns", **whitened) == [[2.25, 2.25, 3.0, 3.0]], "the critic learns what really came"
    assert stream(batch, **whitened) != stream(batch, **changes)


def test_sessions_do_not_flow_into_each_other() -> None:
    changes = {"advantage_estimator": "ppo", "gamma": 1.0, "lambd": 1.0}
    together = stream(batch_of([session([1.0, 2.0], "ada")], [session([4.0], "bob")]), **changes)
    assert together == [[3.0, 3.0, 2.0, 2.0], [4.0, 4.0]]


def test_a_session_in_two_samples_is_one_session() -> None:
    changes = {"advantage_estimator": "ppo", "gamma": 0.5, "lambd": 1.0}
    batch = batch_of([session([1.0], "ada"), session([4.0], "ada")])
    assert stream(batch, **changes) == [[3.0, 3.0], [4.0, 4.0]]


def test_reinforce_plus_plus_by_hand() -> None:
    """Rewards to go less the KL still to come, whitened over all tokens."""
    kl = [0.0, 0.1, 0.2, 0.0, 0.4, 0.8, 0.0]
    batch = batch_of([session([1.0, 3.0], reference_kl=kl)])
    found = stream(batch, advantage_estimator="reinforce_plus_plus", gamma=0.5, kl_coef=1.0, kl_loss_coef=0.0)
    second = [3.0 - 0.4 - 0.8, 3.0 - 0.8]
    first = [1.0 - 0.1 - 0.2 + 0.5 * second[0], 1.0 - 0.2 + 0.5 * second[0]]
    to_go = torch.tensor([*first, *second], dtype=torch.float64)
    expected = (to_go - to_go.mean()) / (to_go.var() + 1e-8).sqrt()
    assert found == approx([expected.tolist()])


def test_the_baseline_form_of_reinforce_plus_plus_by_hand() -> None:
    groups = [[reply(1.0), reply(0.0)], [reply(2.0), reply(2.0)]]
    centred = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    expected = (centred / (centred.var() + 1e-8).sqrt()).view(4, 2).tolist()
    assert stream(batch_of(*groups), advantage_estimator="reinforce_plus_plus_baseline") == approx(expected)


@pytest.mark.parametrize("estimator", ["reinforce", "grpo", "rloo"])
def test_the_kl_in_the_reward_is_charged_to_its_token(estimator: str) -> None:
    kl = [0.0, 0.25, -0.5, 0.0]
    batch = batch_of([session([1.0], "a", reference_kl=kl), session([0.0], "b")])
    plain = stream(batch, advantage_estimator=estimator)
    charged = stream(batch, advantage_estimator=estimator, kl_coef=2.0, kl_loss_coef=0.0)
    assert charged == approx([[plain[0][0] - 0.5, plain[0][1] + 1.0], plain[1]])


def test_the_kl_of_a_turn_is_part_of_its_reward_over_sessions() -> None:
    kl = [0.0, 0.25, 0.5, 0.0]
    batch = batch_of([session([1.0], reference_kl=kl)])
    found = stream(batch, advantage_estimator="ppo", kl_coef=2.0, kl_loss_coef=0.0)
    assert found == [[-0.5, -0.5]]


def test_advantages_of_its_own_are_charged_the_kl_in_the_reward() -> None:
    own = session([1.0], "a", advantages=[0.0, 2.0, 2.0, 0.0], reference_kl=[0.0, 0.5, 0.25, 0.0])
    for estimator in ESTIMATORS:
        assert stream(batch_of([own]), advantage_estimator=estimator) == [[2.0, 2.0]]
        assert stream(batch_of([own]), advantage_estimator=estimator, kl_coef=2.0, kl_loss_coef=0.0) == [[1.0, 1.5]]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_turns_that_nobody_scored_are_charged_the_kl_in_the_reward(estimator: str) -> None:
    kl = [0.0, 0.5, -0.25, 0.0, 0.0, 0.0, 0.0]
    unscored = session([7.0, 1.0], "a", has_reward=[1, 0, 0, 1, 1, 1, 1], reference_kl=kl)
    found = stream(batch_of([unscored]), advantage_estimator=estimator, kl_coef=2.0, kl_loss_coef=0.0)
    assert found[0][:2] == [-1.0, 0.5]


def test_whitening_leaves_out_steps_that_are_dropped() -> None:
    """The second steps are all worth the same; the mean and the deviation of what trains are 0 and 1."""
    attempts = [session([1.0, 1.0], "x"), session([0.0, 1.0], "y"), session([0.0, 1.0], "z")]
    found = stream(batch_of(attempts), advantage_estimator="step_wise", normalize_advantages=True)
    trained = torch.tensor(found, dtype=torch.float64).flatten()
    assert trained.shape == (6,)
    assert (trained.mean().item(), trained.std().item()) == (pytest.approx(0.0, abs=1e-7), pytest.approx(1.0, abs=1e-7))


def test_steps_with_an_outcome() -> None:
    """Outcome and process added and compared step by step; a step that all of them did equally well is left out."""
    attempts = [
        Sample(s.token_ids, s.streams, {**s.values, "outcome": outcome}, (), s.trajectory_id, "ada")
        for s, outcome in ((session([1.0, 0.5], "x"), 1.0), (session([-1.0, 2.5], "y"), -1.0))
    ]
    samples, _ = with_advantages(batch_of(attempts), LossConfig(advantage_estimator="step_wise"), MovingBaseline(0.9))
    # first steps: 1 + 1 and −1 − 1; second steps: 1 + ½ and −1 + 2½, equal
    assert [list(s.streams["loss_mask"]) for s in samples] == [[0, 1, 1, 0, 0, 0, 0]] * 2
    one = 2.0 / (8.0**0.5 + 1e-6)
    found = stream(batch_of(attempts), advantage_estimator="step_wise")
    assert found == approx([[one, one], [-one, -one]])
    halved = stream(batch_of(attempts), advantage_estimator="step_wise", prm_step_coef=0.5)
    assert len(halved[0]) == 4, "with another weight the second steps differ"


def test_turns_that_nobody_scored_are_compared_with_nothing() -> None:
    unscored = session([7.0, 1.0], "a", has_reward=[1, 0, 0, 1, 1, 1, 1])
    batch = batch_of([unscored, session([0.0], "b")])
    assert stream(batch, advantage_estimator="grpo", grpo_std_normalization=False) == [[0, 0, 0.5, 0.5], [-0.5, -0.5]]


def test_advantages_of_its_own_stay_and_are_not_whitened() -> None:
    own = session([1.0], "a", advantages=[0.0, 7.0, 8.0, 0.0])
    found = stream(batch_of([own, reply(1.0), reply(0.0)]), baseline="none", normalize_advantages=True)
    scale = (1 / 3 + 1e-8) ** 0.5
    assert found == approx([[7.0, 8.0], [0.5 / scale] * 2, [-0.5 / scale] * 2])


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name not in ("ppo", "reinforce", "step_wise")])
def test_equal_rewards_give_exactly_zero(estimator: str) -> None:
    batch = batch_of([reply(0.3) for _ in range(5)], [reply(0.3) for _ in range(2)])
    for normalize in (False, True):
        found = stream(batch, advantage_estimator=estimator, normalize_advantages=normalize)
        assert found == [[0.0, 0.0]] * 7


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_the_order_of_groups_does_not_matter(estimator: str, data) -> None:
    rewards = data.draw(st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=4), max_size=4))
    groups = [[session([r, -r], f"{g}-{i}") for i, r in enumerate(of_group)] for g, of_group in enumerate(rewards)]
    if not groups:
        return
    order = data.draw(st.permutations(range(len(groups))))

    def by_session(indices: list[int]) -> dict[str, list[float]]:
        batch = Batch(tuple(SampleGroup(f"group {i}", tuple(groups[i])) for i in indices))
        # a batch of constant steps keeps its first bucket, whichever that is, so let there always be one that differs
        extra = SampleGroup("extra", (session([1.0, 0.0], "extra 1"), session([0.0, 1.0], "extra 2")))
        batch = Batch((*batch.groups, extra))
        found = stream(batch, advantage_estimator=estimator)
        return {sample.trajectory_id: row for sample, row in zip(batch.samples, found, strict=True)}

    straight, turned = by_session(list(range(len(groups)))), by_session(order)
    assert turned == {name: [pytest.approx(a, abs=1e-9) for a in row] for name, row in straight.items()}
