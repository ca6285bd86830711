"""γ and λ over the turns of a session, though each turn is a sample and a group of its own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from slime.algorithms.advantages import MovingBaseline
from slime.compat.conversion import to_group
from slime.compat.sample import Sample as SlimeSample
from slime.config.sections import LossConfig
from slime.data.estimates import with_advantages
from slime.data.outcomes import with_later_rewards
from slime.types import Batch, Sample, SampleGroup

PPO = {"advantage_estimator": "ppo", "gamma": 0.5, "lambd": 0.5}


def turn(
    name: str, score: float, *ancestors: str, session: str = "s", source: str = "ada", is_known: bool = False
) -> Sample:
    """One turn as a live loop makes it: two trained tokens, and what it goes on from, known of a first turn or not."""
    streams = {
        "loss_mask": (0, 1, 1),
        "rewards": (0.0, score, score),
        "turn_index": (-1, 0, 0),
        "rollout_logprobs": (0.0, -1.0, -1.0),
    }
    values = {"reward": score, "temperature": 1.0}
    return Sample((1, 2, 3), streams, values, (name,), session, source, (ancestors if ancestors or is_known else None,))


def batch_of(*samples: Sample) -> Batch:
    """Every turn a group of its own."""
    return Batch(tuple(SampleGroup(sample.turn_ids[0], (sample,)) for sample in samples))


def advantages(batch: Batch, **changes: Any) -> dict[str, float]:
    """By turn."""
    samples, _ = with_advantages(batch, LossConfig(**{**PPO, **changes}), MovingBaseline(0.9))
    return {sample.turn_ids[0]: sample.streams["advantages"][-1] for sample in samples}


def test_turns_that_are_groups_of_their_own_are_one_session() -> None:
    chain = [turn("a", 1.0), turn("b", 2.0, "a"), turn("c", 4.0, "b", "a")]
    expected = {"a": 1 + 2 / 4 + 4 / 16, "b": 2 + 4 / 4, "c": 4.0}
    assert advantages(batch_of(*chain)) == expected
    for order in ([2, 0, 1], [1, 2, 0], [2, 1, 0]):
        assert advantages(batch_of(*(chain[i] for i in order))) == expected, "judges finish in any order"


def test_where_no_store_was_asked_the_order_of_the_batch_is_that_of_the_turns() -> None:
    assert advantages(batch_of(turn("a", 1.0), turn("b", 2.0), turn("c", 4.0))) == {"a": 1.75, "b": 3.0, "c": 4.0}


def test_a_turn_that_is_not_in_the_batch_is_passed_over() -> None:
    batch = batch_of(turn("a", 1.0), turn("c", 4.0, "b", "a"))
    assert advantages(batch) == {"a": 2.0, "c": 4.0}


def test_a_session_that_goes_on_in_two_ways_counts_their_mean() -> None:
    """b and b′ answer the same request: each goes on from a, neither from the other; c goes on from b′."""
    batch = batch_of(
        turn("a", 1.0),
        turn("b", -1.0, "a"),
        turn("b2", 1.0, "a"),
        turn("c", 2.0, "b2", "a"),
    )
    assert advantages(batch) == {"a": 1 + (-1 + 1.5) / 2 / 4, "b": -1.0, "b2": 1.5, "c": 2.0}


def test_replies_to_one_request_are_not_joined_though_their_parent_is_in_another_batch() -> None:
    assert advantages(batch_of(turn("b", 1.0, "a"), turn("b2", 2.0, "a"))) == {"b": 1.0, "b2": 2.0}
    first = [turn(name, score, is_known=True) for name, score in (("a", 1.0), ("a2", 2.0))]
    assert advantages(batch_of(*first)) == {"a": 1.0, "a2": 2.0}


def test_members_of_a_prompt_group_and_sessions_of_two_people_are_not_joined() -> None:
    members = SampleGroup("g", (turn("a", 1.0, session="g-0"), turn("b", 2.0, session="g-1")))
    assert advantages(Batch((members,))) == {"a": 1.0, "b": 2.0}
    assert advantages(batch_of(turn("a", 1.0, source="ada"), turn("b", 2.0, source="bob"))) == {"a": 1.0, "b": 2.0}


def test_turns_of_a_reply_to_a_prompt_are_a_session_and_its_siblings_are_not() -> None:
    """A generate hook's two replies, with a reward for each of their turns, as the prompt loop makes them."""

    def reply(index: int, rewards: tuple[float, float]) -> SlimeSample:
        by_token = {"rewards": [r for r in rewards for _ in range(3)], "turn_index": [0, 0, 0, 1, 1, 1]}
        return SlimeSample(
            index=index,
            tokens=[1, *range(2, 8)],
            response_length=6,
            rollout_log_probs=[-1.0] * 6,
            reward=sum(rewards),
            status=SlimeSample.Status.COMPLETED,
            train_metadata=by_token,
        )

    replies = [reply(0, (1.0, 2.0)), reply(1, (-1.0, 4.0))]
    group = to_group(replies, group_id="g", temperature=1.0, version=0)
    assert group is not None
    samples, _ = with_advantages(Batch((group,)), LossConfig(**PPO), MovingBaseline(0.9))
    assert [sample.streams["advantages"][1::3] for sample in samples] == [[1.5, 2.0], [0.0, 4.0]]


def test_turns_that_say_they_go_on_from_each_other_lose_nothing() -> None:
    found = advantages(batch_of(turn("a", 1.0, "b"), turn("b", 2.0, "a"), turn("c", 4.0, "c")))
    assert sorted(found) == ["a", "b", "c"]
    assert all(value >= score for value, score in zip(found.values(), (1.0, 2.0, 4.0), strict=True))


def test_turns_of_a_session_have_no_say_in_one_that_is_cut_off_from_it() -> None:
    """Known to a store, and none of its ancestors in the batch: the session is cut there."""
    batch = batch_of(turn("a", 1.0), turn("z", 4.0, "y"))
    assert advantages(batch) == {"a": 1.0, "z": 4.0}


def test_reinforce_plus_plus_whitens_what_the_rest_of_the_session_came_to() -> None:
    chain = [turn("a", 1.0), turn("b", 2.0, "a"), turn("c", 4.0, "b", "a")]
    found = advantages(batch_of(*chain), advantage_estimator="reinforce_plus_plus")
    to_go = torch.tensor([1 + 1 + 1, 2 + 2, 4.0], dtype=torch.float64).repeat_interleave(2)
    expected = ((to_go - to_go.mean()) / (to_go.var() + 1e-8).sqrt())[::2]
    assert list(found.values()) == [pytest.approx(value, abs=1e-12) for value in expected.tolist()]


def test_what_later_turns_earned_stands_at_each_token() -> None:
    batch = batch_of(turn("c", 4.0, "b", "a"), turn("a", 1.0), turn("b", 2.0, "a"), turn("x", 7.0, session="other"))
    found = [sample.streams["later_rewards"] for sample in with_later_rewards(batch).samples]
    assert found == [[(), (), ()], [(), (2.0, 4.0), (2.0, 4.0)], [(), (4.0,), (4.0,)], [(), (), ()]]


def test_a_tree_of_turns_against_a_recursion_from_the_leaves() -> None:
    """A second implementation, on random trees in random order, with a critic's values."""
    generator = random.Random(0)
    for _ in range(30):
        parents: list[int | None] = [None]
        parents += [generator.randrange(i) for i in range(1, 12)]
        rewards = [generator.uniform(-1, 1) for _ in parents]
        values = [generator.uniform(-1, 1) for _ in parents]

        def advantage(i: int) -> float:
            after = [j for j, parent in enumerate(parents) if parent == i]  # noqa: B023
            n = max(1, len(after))
            delta = rewards[i] + 0.9 * sum(values[j] for j in after) / n - values[i]  # noqa: B023
            return delta + 0.9 * 0.7 * sum(advantage(j) for j in after) / n

        samples = []
        for i, reward in enumerate(rewards):
            line, at = [], parents[i]
            while at is not None:
                line.append(f"t{at}")
                at = parents[at]
            sample = turn(f"t{i}", reward, *line)
            streams = {**sample.streams, "old_values": (9.0, values[i], 9.0)}
            samples.append(
                Sample(sample.token_ids, streams, sample.values, sample.turn_ids, "s", "ada", sample.ancestors)
            )
        generator.shuffle(samples)
        found = advantages(batch_of(*samples), gamma=0.9, lambd=0.7)
        assert found == {f"t{i}": pytest.approx(advantage(i), abs=1e-12) for i in range(12)}
