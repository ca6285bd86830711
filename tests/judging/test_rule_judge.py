"""The rule judge against reactions labelled by hand, and its laws one by one."""

from __future__ import annotations

import json
import random
import time

import pytest
from judged_turns import turn_with
from openclaw_test import phrases as people
from slime.judging import calibration
from slime.judging.rule import RuleJudge, read_tool_result, repeats
from slime.types import Message

LABELLED = [json.loads(line) for line in calibration.LABELLED.read_text("utf-8").splitlines()]


async def score(said: list[Message] | str | None, request: str = "Say hi.", reply: str = "Hi there.") -> float | None:
    return (await RuleJudge().judge(turn_with(said, request, reply))).score


async def test_agrees_with_labels_and_hardly_ever_says_the_opposite() -> None:
    assert len(LABELLED) >= 400
    given = [(row["label"], await score(row["next"], row["request"], row["reply"])) for row in LABELLED]
    decided = [(label, said) for label, said in given if label]
    agreement = sum(label == said for label, said in decided) / len(decided)
    opposite = sum(label == -(said or 2) for label, said in decided) / len(decided)
    neutral = [said for label, said in given if not label]
    assert agreement >= 0.95
    assert opposite <= 0.01
    assert neutral.count(0.0) >= 0.85 * len(neutral)


async def test_nothing_that_followed_is_no_score() -> None:
    verdict = await RuleJudge().judge(turn_with(None))
    assert verdict.score is None
    assert verdict.reason


async def test_verdict_says_which_words_decided() -> None:
    verdict = await RuleJudge().judge(turn_with("Thanks, but make it shorter."))
    assert verdict.score == -1.0
    assert verdict.reason == "change request: make it shorter"
    assert verdict.details["evidence"] == [(-1, "change request", "make it shorter"), (1, "thanks", "thanks")]


@pytest.mark.parametrize("change", ["make it shorter", "use a list", "no bold please", "try again", "that is wrong"])
@pytest.mark.parametrize("polite", ["{}", "Thanks! {}", "Great, but {}", "Could you {}?", "Nice. {}, thanks."])
async def test_a_change_request_counts_as_negative_however_polite(change: str, polite: str) -> None:
    assert await score(polite.format(change)) == -1.0


def test_repeats_wants_the_same_words_and_the_same_numbers() -> None:
    asked = ["Mia has 12 apples and gives 5 to Tom. How many apples are left?"]
    assert repeats("mia has twelve apples, gives five to tom. how many are left", [*asked, "hm"]) is False
    assert repeats("Mia has 12 apples, gives 5 to Tom, how many are left?", [*asked, "hm"]) is True
    assert repeats("Mia has 14 apples and gives 5 to Tom. How many apples are left?", asked) is False
    assert repeats("What is the capital of Peru?", asked) is False


async def test_quoted_reply_is_not_read_as_the_users_words() -> None:
    assert await score("> that is wrong\n> try again\nPerfect, thanks.") == 1.0


@pytest.mark.parametrize(
    "outage",
    ["HTTP 503 Service Unavailable", "Error: connect ECONNREFUSED ::1", '{"error": "rate limit reached"}'],
)
async def test_trouble_of_the_environment_is_not_held_against_the_action(outage: str) -> None:
    assert await score([{"role": "tool", "content": outage}]) == 0.0


async def test_plain_tool_output_is_no_evidence_and_users_outweigh_tools() -> None:
    output: Message = {"role": "tool", "content": "src/main.py"}
    error: Message = {"role": "tool", "content": "bash: x: command not found"}
    thanks: Message = {"role": "user", "content": "Thanks!"}
    assert await score([output]) == 0.0
    assert await score([output, error]) == -1.0
    assert await score([error, thanks]) == 1.0


def test_tool_results_in_json_are_read_by_their_keys() -> None:
    def said(text: str) -> list[int]:
        return [item.score for item in read_tool_result(text)]

    assert said('{"success": false}') == said('{"exit_code": 3}') == said('{"status": "failed"}') == [-1]
    assert said('{"ok": true}') == said('{"status": "sent"}') == [1]
    assert said('{"rows": ["an error of 5 %"]}') == said("[1, 2]") == said("null") == []


async def test_huge_and_strange_text_is_read_at_once() -> None:
    start = time.monotonic()
    for text in ("a " * 500_000, "no " * 100_000, "?" * 100_000, "\ud800\x00", "(" * 50_000, "make it " * 20_000):
        assert await score(text) in (-1.0, 0.0, 1.0)
    assert (
        await score([{"role": "user", "content": None}, {"role": "user"}, {"role": "user", "content": [1, {}]}]) == 0.0
    )
    assert time.monotonic() - start < 3.0


@pytest.mark.parametrize("seed", range(3))
async def test_reads_the_simulated_people_right(seed: int) -> None:
    """They were written apart from the judge; hundreds of wordings, each a reaction to a word problem."""
    rng = random.Random(seed)
    request, reply = "Ben has 4 boxes with 6 pens each. How many pens?", "1. We have 4 boxes.\n2. Answer: **24** pens."
    problem = "Mia has 12 apples and gives 5 of them away. How many apples are left?"
    good = [people.thank(rng) for _ in range(60)]
    good += [people.ask_next(problem, rng) for _ in range(60)] + [people.say_goodbye(rng) for _ in range(60)]
    bad = [people.correct(rng.choice((24, None)), rng) for _ in range(60)]
    bad += [
        people.complain(name, rng, rng.choice((None, *people.AGAINST))) for name in people.WISHES for _ in range(20)
    ]
    wrong = [text for text in good if await score(text, request, reply) != 1.0]
    wrong += [text for text in bad if await score(text, request, reply) != -1.0]
    assert len(wrong) <= 0.01 * len(good + bad), wrong
