"""Problems have one answer, held-out ones stay out of the corpus, and every style is told from its text alone."""

from __future__ import annotations

import random

import pytest
from openclaw_test.people.problems import final_answer, is_held_out, random_problem
from openclaw_test.people.styles import FORMATS, RULES, TONES, Style, has_bold, has_box, has_numbered_list, write_reply
from openclaw_test.tiny.text import random_conversation

HAS = {"bold": has_bold, "list": has_numbered_list, "boxed": has_box, "plain": RULES["plain"]}
IS = {"short": "short", "long": "detailed", "friendly": "friendly", "praising": "praising"}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("tone", TONES)
def test_a_reply_shows_its_style_and_its_answer(format_: str, tone: str) -> None:
    rng = random.Random(0)
    for _ in range(100):
        problem = random_problem(rng, "train")
        reply = write_reply(problem, Style(format_, tone), rng)  # type: ignore[arg-type]
        assert final_answer(reply) == problem.answer
        assert {name for name, has in HAS.items() if has(reply)} == {format_}
        kept = {name for name in IS.values() if RULES[name](reply)}
        assert kept == ({IS[tone]} if tone in IS else set()), reply


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("**7** apples", 7),
        ("$\\boxed{12}$.", 12),
        ("1. We start with 3.\n2. We add 4.\n3. Answer: 7.", 7),
        ("Hello!", None),
    ],
)
def test_the_last_number_is_the_answer(reply: str, answer: int | None) -> None:
    assert final_answer(reply) == answer


def test_one_problem_in_six_is_held_out() -> None:
    rng = random.Random(1)
    for split, expected in (("train", False), ("held_out", True)):
        problems = [random_problem(rng, split) for _ in range(500)]  # type: ignore[arg-type]
        assert {is_held_out(p.operation, p.a, p.b, p.things) for p in problems} == {expected}
        assert all(p.answer >= 2 for p in problems)


def test_no_held_out_problem_is_in_the_corpus() -> None:
    rng = random.Random(2)
    corpus = "\n".join(str(m["content"]) for _ in range(3000) for m in random_conversation(rng).messages)
    held_out = {random_problem(rng, "held_out").text for _ in range(1000)}
    assert len(held_out) > 500
    assert not [text for text in held_out if text in corpus]


def test_the_corpus_is_the_same_for_the_same_seed() -> None:
    first, again, other = (random.Random(seed) for seed in (3, 3, 4))
    assert random_conversation(first) == random_conversation(again)
    assert [random_conversation(first) for _ in range(20)] != [random_conversation(other) for _ in range(20)]


def test_untaught_replies_are_the_wrong_ones() -> None:
    """Each reply that is not learned is followed by a correction, each learned one to a problem is right."""
    rng = random.Random(5)
    num_wrong = 0
    for _ in range(500):
        talk = random_conversation(rng)
        replies = [index for index, message in enumerate(talk.messages) if message["role"] == "assistant"]
        for index, learned in zip(replies, talk.is_learned, strict=True):
            if not learned:
                num_wrong += 1
                again = talk.messages[index + 2]["content"]
                assert final_answer(talk.messages[index]["content"]) != final_answer(again)
    assert num_wrong > 10
