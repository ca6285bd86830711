"""Stitching: ids decide, every reply trains once, and echoed text never does."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.data.stitching import ScoredTurn, stitch, why_not_trained
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan


def turn_of(
    name: str, prompt_ids: tuple[int, ...], reply_ids: tuple[int, ...], *, version: int = 0, temperature: float = 1.0
) -> Turn:
    return Turn(
        turn_id=name,
        session_id="session",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=(),
        prompt_ids=prompt_ids,
        completion=Completion(
            reply_ids, tuple(-0.1 * i for i in reply_ids), "", "stop", (VersionSpan(version, 0, len(reply_ids)),)
        ),
        sampling=SamplingParams(temperature=temperature),
        reply={"role": "assistant", "content": ""},
    )


def test_a_turn_that_was_fed_the_earlier_one_exactly_extends_its_sample() -> None:
    first = ScoredTurn(turn_of("t1", (1, 2), (3, 4), version=5), 1.0)
    second = ScoredTurn(turn_of("t2", (1, 2, 3, 4, 7), (8,), version=6), -1.0)
    (sample,) = stitch([first, second], source="ada")
    assert sample.token_ids == (1, 2, 3, 4, 7, 8)
    assert sample.streams == {
        "loss_mask": (0, 0, 1, 1, 0, 1),
        "rollout_logprobs": (0.0, 0.0, pytest.approx(-0.3), pytest.approx(-0.4), 0.0, pytest.approx(-0.8)),
        "policy_versions": (-1, -1, 5, 5, -1, 6),
        "rewards": (0.0, 0.0, 1.0, 1.0, 0.0, -1.0),
        "turn_index": (-1, -1, 0, 0, -1, 1),
    }
    assert sample.turn_ids == ("t1", "t2")
    assert (sample.trajectory_id, sample.source, sample.values["reward"]) == ("session", "ada", 0.0)


def test_a_rewritten_history_begins_a_new_sample_and_its_echo_is_not_trained() -> None:
    first = ScoredTurn(turn_of("t1", (1, 2), (3, 4)), 1.0)
    second = ScoredTurn(turn_of("t2", (9, 2, 3, 4, 7), (8,)), 1.0)  # the reply 3 4 stands in it, word for word
    one, two = stitch([first, second])
    assert one.turn_ids == ("t1",)
    assert two.streams["loss_mask"] == (0, 0, 0, 0, 0, 1)
    assert one.trajectory_id == two.trajectory_id


def test_a_second_continuation_of_a_reply_is_a_sample_of_its_own() -> None:
    root = ScoredTurn(turn_of("t1", (1,), (2,)), 1.0)
    left = ScoredTurn(turn_of("t2", (1, 2, 5), (6,)), 1.0)
    right = ScoredTurn(turn_of("t3", (1, 2, 7), (8,)), -1.0)
    after_right = ScoredTurn(turn_of("t4", (1, 2, 7, 8, 9), (10,)), 1.0)
    samples = stitch([root, left, right, after_right])
    assert [sample.turn_ids for sample in samples] == [("t1", "t2"), ("t3", "t4")]
    assert samples[1].streams["loss_mask"] == (0, 0, 0, 1, 0, 1)


def test_an_untrained_turn_between_two_trained_ones_is_context() -> None:
    first, third = turn_of("t1", (1,), (2,)), turn_of("t3", (1, 2, 3, 4, 5), (6,))
    (sample,) = stitch([ScoredTurn(first, 1.0), ScoredTurn(third, 1.0)])
    assert sample.streams["loss_mask"] == (0, 1, 0, 0, 0, 1)


def test_another_temperature_begins_a_new_sample() -> None:
    first, second = turn_of("t1", (1,), (2,)), turn_of("t2", (1, 2, 3), (4,), temperature=0.5)
    samples = stitch([ScoredTurn(first, 1.0), ScoredTurn(second, 1.0)])
    assert [sample.values["temperature"] for sample in samples] == [1.0, 0.5]


def test_streams_of_one_turn_are_filled_for_the_others() -> None:
    first = ScoredTurn(turn_of("t1", (1,), (2, 3)), 1.0, {"teacher_logprobs": (-0.5, -0.25)})
    second = ScoredTurn(turn_of("t2", (1, 2, 3, 4), (5,)), 1.0)
    (sample,) = stitch([first, second])
    assert sample.streams["teacher_logprobs"] == (0.0, -0.5, -0.25, 0.0, 0.0)
    with pytest.raises(ValueError, match="'teacher_logprobs' and the reply differ in length"):
        ScoredTurn(first.turn, 1.0, {"teacher_logprobs": (-0.5,)})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": TurnKind.SIDE}, "side turn"),
        ({"kind": TurnKind.COMPACTION}, "compaction turn"),
        ({"completion": Completion((), (), "", "stop", ())}, "empty"),
        ({"completion": Completion((3,), (-0.1,), "", "abort", (VersionSpan(0, 0, 1),))}, "cut off"),
        ({"sampling": SamplingParams(temperature=0.0)}, "not sampled from the plain distribution"),
        ({"sampling": SamplingParams(top_p=0.9)}, "not sampled from the plain distribution"),
        ({}, ""),
    ],
)
def test_what_is_no_training_material_says_why(change, reason) -> None:
    turn = dataclasses.replace(turn_of("t1", (1,), (2,)), **change)
    assert reason in why_not_trained(turn)
    assert bool(why_not_trained(turn)) == bool(reason)
    if reason:
        with pytest.raises(ValueError, match="t1 cannot be trained"):
            ScoredTurn(turn, 1.0)


@given(st.data())
def test_in_any_conversation_every_sampled_token_trains_exactly_once(data) -> None:
    """A random tree of turns, each fed on from any earlier one, with a fresh history, or with an echo of another."""
    turns: list[Turn] = []
    next_id = 100
    for number in range(data.draw(st.integers(1, 7))):
        prompt: tuple[int, ...] = (data.draw(st.integers(1, 3)),)
        if turns:
            parent = data.draw(st.sampled_from(turns))
            how = data.draw(st.sampled_from(["extends", "echoes", "fresh"]))
            history = (*parent.prompt_ids, *parent.completion.token_ids)
            prompt = {"extends": (*history, next_id), "echoes": (0, *history), "fresh": prompt}[how]
        reply = tuple(range(next_id + 1, next_id + 1 + data.draw(st.integers(1, 3))))
        next_id += 10
        turns.append(turn_of(f"t{number}", prompt, reply))
    samples = stitch([ScoredTurn(turn, 1.0) for turn in turns])
    trained = [i for s in samples for i, flag in zip(s.token_ids, s.streams["loss_mask"], strict=True) if flag]
    assert sorted(trained) == sorted(i for turn in turns for i in turn.completion.token_ids)
    for turn in turns:  # each from exactly the ids that were fed before it
        whole = (*turn.prompt_ids, *turn.completion.token_ids)
        home = next(sample for sample in samples if turn.turn_id in sample.turn_ids)
        assert home.token_ids[: len(whole)] == whole
