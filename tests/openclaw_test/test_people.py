"""People with hidden preferences: what they make of replies, and whether a judge hears it in their words."""

from __future__ import annotations

import asyncio
import random

import pytest
from openclaw_test.people.people import Person
from openclaw_test.people.problems import final_answer, is_held_out, random_problem
from openclaw_test.people.styles import FORMATS, RULES, Style, is_plain, write_reply
from slime.judging.rules.judge import RuleJudge
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan


def judged(request: str, reply: str, said: str) -> float | None:
    turn = Turn(
        turn_id="t1",
        session_id="s1",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=({"role": "user", "content": request},),
        prompt_ids=(1,),
        completion=Completion((2,), (-0.1,), reply, "stop", (VersionSpan(0, 0, 1),)),
        sampling=SamplingParams(),
        reply={"role": "assistant", "content": reply},
        next_state=({"role": "user", "content": said},),
    )
    return asyncio.run(RuleJudge().judge(turn)).score


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_way_of_writing_a_reply_says_the_answer_last_and_shows_its_format(format_name: str):
    rng = random.Random(3)
    for _ in range(100):
        problem = random_problem(rng, "train")
        reply = write_reply(problem, Style(format_name, "neutral"), rng)  # type: ignore[arg-type]
        assert final_answer(reply) == problem.answer
        assert is_plain(reply) == (format_name == "plain")


def test_held_out_problems_are_never_asked_while_people_talk():
    rng = random.Random(1)
    for split in ("train", "held_out"):
        for _ in range(300):
            problem = random_problem(rng, split)  # type: ignore[arg-type]
            is_kept_back = is_held_out(problem.operation, problem.a, problem.b, problem.things)
            assert is_kept_back == (split == "held_out")


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_person_thanks_for_what_they_like_and_complains_about_the_rest_in_words_a_judge_reads(format_name: str):
    rng = random.Random(5)
    misread = 0
    for seed in range(60):
        person = Person("Ada", "plain", seed)
        problem = random_problem(rng, "train")
        reply = write_reply(problem, Style(format_name, "neutral"), rng)  # type: ignore[arg-type]
        reaction = person.react(problem, reply, is_last_try=False)
        assert reaction.wants_again == (format_name != "plain")
        assert str(problem.answer) not in reaction.text
        if reaction.text:
            misread += judged(problem.text, reply, reaction.text) != -1
    assert misread <= 1


def test_a_wrong_answer_is_corrected_whatever_its_style_and_the_right_one_is_not_given_away():
    rng = random.Random(7)
    for seed in range(60):
        problem = random_problem(rng, "train")
        reaction = Person("Bo", "plain", seed).react(problem, f"That makes {problem.answer + 1}.", is_last_try=False)
        assert reaction.wants_again
        assert str(problem.answer) not in reaction.text.replace(str(problem.answer + 1), "")
        assert judged(problem.text, f"That makes {problem.answer + 1}.", reaction.text) == -1


def test_nobody_asks_a_third_time():
    problem = random_problem(random.Random(0), "train")
    reaction = Person("Cleo", "plain", 1).react(problem, "**no idea**", is_last_try=True)
    assert reaction.text
    assert not reaction.wants_again


def test_the_same_seed_says_the_same():
    problem = random_problem(random.Random(0), "train")
    said = {
        Person("Dan", rule, 4).react(problem, "**9**", is_last_try=False).text for _ in range(3) for rule in ["plain"]
    }
    assert len(said) == 1
    assert set(RULES) >= {"plain", "short", "friendly"}
