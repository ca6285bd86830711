"""The suites: who answers right scores 1, who does not scores 0, and what runs cannot run away."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from openclaw_test.people.personas import Reply
from openclaw_test.suites.coding_suite import coding_tasks, source_in
from openclaw_test.suites.sandbox import call_function
from openclaw_test.suites.suites import run_suite
from openclaw_test.suites.tool_suite import tool_tasks
from slime.types import Message


class Answering:
    """An assistant that says what it was given, by prompt."""

    def __init__(self, replies: dict[str, Reply], otherwise: Reply) -> None:
        self._replies = replies
        self._otherwise = otherwise

    async def reply(
        self, messages: Sequence[Message], *, user: str, seed: int, tools: Sequence[dict[str, Any]] = ()
    ) -> Reply:
        return self._replies.get(messages[-1]["content"], self._otherwise)


async def test_the_solutions_of_the_coding_suite_score_one():
    tasks = coding_tasks(14, seed=3)
    said = {task.prompt: Reply(f"Sure:\n```python\n{task.solution}```\nDone.", 40) for task in tasks}
    score = await run_suite("coding", Answering(said, Reply("", 0)), 14, seed=3)
    assert score.passed.mean == 1
    assert not score.failures
    assert not score.note


async def test_who_cannot_code_scores_nothing_and_is_told_so():
    score = await run_suite("coding", Answering({}, Reply("**Answer:** 7 apples.", 8)), 7, seed=0)
    assert score.passed.mean == 0
    assert score.failures == {"no such function": 7}
    assert "solves none of 7" in score.note


def test_a_wrong_function_is_no_solution():
    for task in coding_tasks(14, seed=1):
        assert task.failure(task.solution) == ""
        assert task.failure(f"def {task.function}(x):\n    return None\n") == "wrong result"


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("def f(x):\n    return 1 / 0", "error"),
        ("def f(x):\n    return {1, 2}", "error"),
        ("def f(x:", "error"),
        ("import sys\nsys.exit(0)\ndef f(x): ...", "no result"),
        ("def f(x):\n    while True: pass", "timeout"),
        ("def f(x):\n    return len('a' * (2 << 30))", "error"),
        ("def f(x):\n    print('y' * (4 << 20))\n    return 1", "error"),
    ],
)
def test_what_runs_is_bounded(source: str, failure: str):
    began = time.monotonic()
    assert call_function(source, "f", [(1,)], timeout_s=1.5).failure == failure
    assert time.monotonic() - began < 30, "one of them would run for ever"


def test_what_runs_has_no_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    source = "import os\ndef f(x):\n    return ['OPENAI_API_KEY' in os.environ, os.path.basename(os.getcwd())[:14]]"
    assert call_function(source, "f", [(1,)]).results == [[False, "openclaw-suite"]]


def test_printing_does_not_get_in_the_way_and_types_count():
    assert call_function("def f(x):\n    print('hi')\n    return x + 1", "f", [(1,), (2,)]).results == [2, 3]
    [task] = [task for task in coding_tasks(7, seed=0) if task.function == "is_near"]
    as_numbers = task.solution.replace("return ", "return 1 * (").rstrip() + ")\n"
    assert task.failure(as_numbers) == "wrong result"


def test_code_is_found_in_its_fences_or_without_any():
    assert source_in("Here:\n```python\nx = 1\n```\nand\n```\ny = 2\n```") == "x = 1\n\ny = 2\n"
    assert source_in("x = 1") == "x = 1"


async def test_the_right_calls_score_one():
    tasks = tool_tasks(12, seed=5)
    said = {task.prompt: Reply("", 20, ((task.name, json.dumps(dict(task.arguments))),)) for task in tasks}
    score = await run_suite("tool-use", Answering(said, Reply("", 0)), 12, seed=5)
    assert score.passed.mean == 1


def test_every_way_to_get_a_call_wrong():
    [task] = tool_tasks(1, seed=0)
    right = (task.name, json.dumps(dict(task.arguments)))
    assert task.name == "set_timer"
    assert task.failure(Reply("", 1, (right,))) == ""
    assert task.failure(Reply("I set it.", 1)) == "no call"
    assert task.failure(Reply("", 1, (right, right))) == "more than one call"
    assert task.failure(Reply("", 1, (("get_weather", right[1]),))) == "wrong tool"
    assert task.failure(Reply("", 1, ((task.name, "{"),))) == "arguments are not JSON"
    assert task.failure(Reply("", 1, ((task.name, json.dumps({"minutes": str(task.arguments["minutes"])})),))) == (
        "wrong arguments"
    )


def test_tasks_are_the_same_for_the_same_seed_and_offer_the_right_tool():
    assert tool_tasks(12, 4) == tool_tasks(12, 4) != tool_tasks(12, 5)
    assert [t.prompt for t in coding_tasks(9, 4)] == [t.prompt for t in coding_tasks(9, 4)]
    assert coding_tasks(9, 4) != coding_tasks(9, 5)
    for task in tool_tasks(30, 0):
        assert [tool["function"]["name"] for tool in task.tools].count(task.name) == 1
