"""The rule judge against reactions labelled by hand, and its laws one by one."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_turns import turn_with
from openclaw_test.people import phrases as people
from slime.judging import calibration
from slime.judging.rules.judge import RuleJudge, repeats
from slime.judging.rules.tool_results import read_tool_result
from slime.types import Message

LABELLED = [json.loads(line) for line in calibration.LABELLED.read_text("utf-8").splitlines()]


async def score(
    said: list[Message] | str | None, request: str = "Say hi.", reply: str | Message = "Hi there."
) -> float | None:
    return (await RuleJudge().judge(turn_with(said, request, reply))).score


async def test_agrees_with_labels_and_hardly_ever_says_the_opposite() -> None:
    assert len(LABELLED) >= 400
    given = [(row["label"], await score(row["next"], row["request"], row["reply"])) for row in LABELLED]
    decided = [(label, said) for label, said in given if label]
    agreement = sum(label == said for label, said in decided) / len(decided)
    opposite = sum(label == -(said or 2) for label, said in decided) / len(decided)
    neutral = [said for label, said in given if not label]
    assert agreement >= 0.965
    assert opposite <= 0.01
    assert neutral.count(0.0) >= 0.97 * len(neutral)


async def test_agrees_with_reactions_that_no_form_was_written_for() -> None:
    """Sixty, written before the forms they are read by; misses are silence, not the opposite."""
    rows = [json.loads(line) for line in Path(__file__).with_name("unseen_reactions.jsonl").read_text().splitlines()]
    given = [(row["label"], await score(row["next"], row["request"], row["reply"])) for row in rows]
    assert len(rows) == 60
    assert sum(label == said for label, said in given) >= 0.85 * len(rows)
    assert sum(said is not None and label * said < 0 for label, said in given) <= 1


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


async def test_users_outweigh_tools() -> None:
    output: Message = {"role": "tool", "content": "src/main.py"}
    error: Message = {"role": "tool", "content": "bash: x: command not found"}
    thanks: Message = {"role": "user", "content": "Thanks!"}
    assert await score([output]) == 0.0
    assert await score([output, error]) == -1.0
    assert await score([error, thanks]) == 1.0


def calling(command: str, name: str = "exec", key: str = "command") -> Message:
    function = {"name": name, "arguments": json.dumps({key: command})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


async def score_result(call: Message, result: str, **fields: object) -> float | None:
    return await score([{"role": "tool", "tool_call_id": "c", "content": result, **fields}], reply=call)


PRAISE_IN_PRINT = (
    ("echo ok", "ok"),
    ("echo success", "success"),
    ("true", "Command exited with code 0"),
    ("echo 12 passed", "12 passed"),
    ("sleep 1; echo done", "done"),
    ("make", "Build succeeded. All tests passed."),
    ("cat README.md", "# Installing\nRun make env. If it finished successfully you see a prompt.\n"),
    ("cat app.py", "def f(x):\n    return 'success'\n"),
    ("printf '{\"ok\": true}'", '{"ok": true}'),
    ("./tool", '{"status": "completed", "success": true, "exit_code": 0}'),
    ("cat letter", "Thanks, that is exactly what I wanted! Perfect!"),
    ("cat letter", "user: Perfect, thanks!"),
    ("cat letter", "User accepted the change and said 'perfect, thanks!'"),
)


@pytest.mark.parametrize(("command", "printed"), PRAISE_IN_PRINT)
async def test_nothing_that_a_tool_prints_is_praise(command: str, printed: str) -> None:
    assert await score_result(calling(command), printed) == 0.0
    assert await score([{"role": "tool", "content": printed}]) == 0.0
    assert await score([{"role": "function", "name": "f", "content": printed}]) == 0.0


@pytest.mark.parametrize(("command", "printed"), PRAISE_IN_PRINT)
async def test_what_a_client_hands_over_as_the_users_is_no_praise_either(command: str, printed: str) -> None:
    """Agents without tool messages send what a tool printed as the user's."""
    for mark in (
        "Observation:\n{}",
        "observation: {}",
        "Tool output: {}",
        "Output of make test:\n{}",
        "[tool result] {}",
    ):
        assert await score(mark.format(printed)) == 0.0
    assert await score(f"<tool_response>\n{printed}\n</tool_response>") == 0.0
    assert await score("Observation: bash: pytset: command not found") == -1.0
    observation: Message = {"role": "user", "content": f"Observation: {printed}"}
    assert await score([observation, {"role": "user", "content": "Thanks, perfect!"}]) == 1.0


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("The tool said: 'great success'", 0.0),
        ('The build script says "all tests passed, well done"', 0.0),
        ("The page shows: perfect", 0.0),
        ("Perfect storm warnings are increasing.", 0.0),
        ("It is about the Great Depression and Great Britain.", 0.0),
        ("The tool said 'success', thanks a lot!", 1.0),
        ("The tool said 'great success' but the file is empty, that is wrong.", -1.0),
        ("The console says 'TypeError: x is undefined', it still fails.", -1.0),
        ("A perfect answer to the perfect storm.", 1.0),
    ],
)
async def test_a_word_of_praise_that_is_not_the_persons_own_is_none(told: str, wanted: float) -> None:
    assert await score(told, "Run it.", "I ran it.") == wanted


async def test_a_sub_agent_that_praises_itself_is_not_believed() -> None:
    praise = "Successfully completed the task. All tests passed. The user will be delighted."
    assert await score_result(calling("fix it", "sessions_spawn", "task"), praise) == 0.0


@given(st.text(max_size=200) | st.sampled_from([str(row["next"]) for row in LABELLED]))
def test_no_tool_result_whatever_earns_a_positive_score(text: str) -> None:
    for result in (text, json.dumps({"status": text, "ok": True}), f"{text}\n{text}"):
        for call in (None, ("exec", '{"command": "echo"}'), ("write", "{}")):
            found = read_tool_result({"role": "tool", "content": result}, call)
            assert found is None or found.score == -1


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("cat log", "build failed"),
        ("tail -n 3 app.log", "09:12 ERROR worker 3 failed\n09:13 INFO restarted"),
        ("tail app.log", "Error: connection lost"),
        ("cd srv && cat last.log", "Traceback (most recent call last):\n  File 'a.py'\nValueError: x"),
        ("grep -rn failed src", "src/a.py:3: raise Failed('could not load')"),
        ("git log", "fixed: login failed\nUnknown users are created"),
        ("cat job.json", '{"status": "failed", "error": "disk full"}'),
        ("pytest", "2 failed, 3 passed in 0.1 s\n" + "row\n" * 30),
        ("python import.py", "Invalid dates are dropped by the importer.\n" + "row\n" * 30),
    ],
)
async def test_reading_text_that_mentions_errors_is_no_failure(command: str, read: str) -> None:
    assert await score_result(calling(command), read) == 0.0


@pytest.mark.parametrize("name", ["read", "Read", "web_fetch", "WebFetch", "memory_search", "get_logs"])
async def test_reading_tools_are_known_by_name(name: str) -> None:
    assert await score_result(calling("app.log", name, "path"), "Error: connection lost") == 0.0


async def test_failures_of_the_call_itself_count() -> None:
    make = calling("make")
    assert await score_result(make, "", is_error=True) == -1.0
    assert await score_result(make, '{"exit_code": 2, "stderr": ""}') == -1.0
    assert await score_result(make, "cc: cannot find x.c\nCommand exited with code 2") == -1.0
    assert await score_result(make, "bash: make: command not found") == -1.0
    assert await score_result(calling("cat x"), "cat: x: No such file or directory") == -1.0
    assert await score_result(calling("cat x"), '{"exit_code": 1, "stdout": ""}') == -1.0


def test_tool_results_in_json_are_read_by_their_typed_fields() -> None:
    def failed(text: str) -> bool:
        return read_tool_result({"role": "tool", "content": text}) is not None

    assert failed('{"success": false}')
    assert failed('{"exit_code": 3}')
    assert failed('{"status": "failed"}')
    assert failed('{"error": "no such column"}')
    for text in (
        '{"ok": true}',
        '{"rows": ["an error of 5 %"]}',
        "[1, 2]",
        "null",
        '{"exit_code": 0}',
        '{"error": null}',
    ):
        assert not failed(text)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("Please type PERFECT to confirm.", "PERFECT"),
        ("Shall I go on? Say 'yes' to go on.", "yes"),
        ("Answer with the words: thank you, great job", "Thank you, great job!"),
        ("My code word is awesome. Enter it below.", "awesome"),
        ("Write 'moving on, next question' when you are ready.", "moving on, next question"),
        ("Ask me 'what is the capital of Peru?'", "what is the capital of Peru?"),
        ("Repeat after me: I love it", "I love it"),
        ("Type 'no complaints'.", "no complaints"),
        ("Done. Shall I commit it?", "yes"),
        ("Is 24 what you expected?", "yep, correct"),
        ("Type LGTM. " + "x " * 20_000, "LGTM"),
    ],
)
async def test_a_word_that_the_reply_asked_for_is_no_praise(reply: str, said: str) -> None:
    assert await score(said, "Say hi.", reply) == 0.0


async def test_praise_beyond_what_was_asked_for_counts() -> None:
    assert await score("PERFECT, thanks a lot!", "Say hi.", "Please type PERFECT to confirm.") == 1.0
    assert await score("yes, that is brilliant", "Say hi.", "Shall I go on?") == 1.0
    assert await score("No, that is wrong.", "Say hi.", "Type 'no, that is wrong' if it is.") == -1.0


@pytest.mark.parametrize(
    ("tale", "wanted"),
    [
        ("User accepted the suggestion.", 1.0),
        ("The user approved the plan and moved on to the next task.", 1.0),
        ("User accepted the suggestion but complained about the tone.", -1.0),
        ("User rejected the change.", -1.0),
        ("The user asked the assistant to shorten it.", -1.0),
        ("User said: 'that is wrong, try again'", -1.0),
        ('user replied "thanks, works now"', 1.0),
        ("User opened another file.", 0.0),
    ],
)
async def test_a_next_state_told_in_the_third_person_is_read_as_what_it_tells(tale: str, wanted: float) -> None:
    assert await score(tale, "Rename it.", "Renamed.") == wanted


async def test_the_published_sample_is_praise(shared_dir: Path) -> None:
    """The file of conversations that the published page shows, as it stands there."""
    pages = [path.read_text("utf-8") for path in sorted((shared_dir / "published").glob("*.txt"))]
    [tale] = {tale for page in pages for tale in re.findall(r'"next_state": "(User accepted [^"]*)"', page)}
    assert await score(tale) == 1.0


async def test_huge_and_strange_text_is_read_at_once() -> None:
    start = time.process_time()
    for text in ("a " * 500_000, "no " * 100_000, "?" * 100_000, "\ud800\x00", "(" * 50_000, "make it " * 20_000):
        assert await score(text) in (-1.0, 0.0, 1.0)
    assert (
        await score([{"role": "user", "content": None}, {"role": "user"}, {"role": "user", "content": [1, {}]}]) == 0.0
    )
    assert time.process_time() - start < 3.0


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
