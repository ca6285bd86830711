"""A user played by a model: on a scripted model behind the official client."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
from openclaw_test.people.model_user import (
    STOP_WORD,
    ModelUser,
    is_satisfied,
    user_factory,
    why_refused,
    without_thoughts,
)
from openclaw_test.people.personas import Reply, personas
from openclaw_test.people.problems import Problem
from openclaw_test.people.sessions import hold_session
from openclaw_test.people.users import ScriptedUser
from slime.errors import ConfigError
from slime.types import Message

PROBLEM = Problem("plus", 3, 4, "pens", "Mia has 3 pens and gets 4 more. How many pens does Mia have now?")
STUDENT = personas(34)["student"]


class Says:
    """An OpenAI-compatible server that goes through its lines, and keeps what it was asked."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        message = {"role": "assistant", "content": self.lines.pop(0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(
            200, json={"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    def user(self) -> ModelUser:
        http_client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        client = openai.AsyncOpenAI(base_url="http://simulator/v1", api_key="k", http_client=http_client, max_retries=0)
        return ModelUser("student-0", STUDENT, 1, client=client, model="gpt-4o")


async def test_the_simulator_knows_the_rule_and_not_the_answer():
    says = Says("Please leave out the bold.")
    reaction = await says.user().react([], PROBLEM, Reply("**Answer:** 7 pens.", 8), is_last_try=False)
    assert (reaction.text, reaction.wants_again) == ("Please leave out the bold.", True)
    system, shown = (message["content"] for message in says.asked[0]["messages"])
    assert STUDENT.rule in system
    assert "do not solve" in system
    assert PROBLEM.text in shown
    assert "**Answer:** 7 pens." in shown


async def test_a_satisfied_simulator_thanks_in_a_message_of_its_own():
    reaction = (
        await Says(f"<think>plain</think>\n{STOP_WORD}.").user().react([], PROBLEM, Reply("7.", 2), is_last_try=False)
    )
    assert not reaction.wants_again
    assert reaction.text
    assert STOP_WORD not in reaction.text


async def test_a_simulator_that_solves_is_asked_again_and_then_given_up():
    says = Says("It should say 7 pens.", "Write it plainly.")
    assert (await says.user().react([], PROBLEM, Reply("**8**", 3), is_last_try=True)).text == "Write it plainly."
    assert says.asked[0]["seed"] != says.asked[1]["seed"]

    class Bold:
        async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
            return Reply("**8**", 3)

    session = await hold_session(Says(*["word " * 61] * 3).user(), Bold(), 0, seed=0)
    assert "more than 60 words, 3 times" in session.error
    assert (session.num_replies, session.is_kept) == (1, False)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("No bold, please.", ""),
        ("There are 17 things wrong.", ""),
        ("The answer is 7.", "it gave the answer away"),
        ("", "it returned no text"),
        (f"{STOP_WORD}, but no bold.", "it mixed the stop word with a complaint"),
    ],
)
def test_what_a_simulator_may_say(said: str, reason: str):
    assert why_refused(said, PROBLEM) == reason


def test_thoughts_are_not_said_and_acceptance_is_one_word():
    assert without_thoughts("<think>7?</think> No bold.") == "No bold."
    assert is_satisfied(f"  {STOP_WORD.lower()}!\n")
    assert not is_satisfied(f"not {STOP_WORD}")


async def test_the_flags_choose_who_plays_the_users():
    def flags(url: str, model: str) -> argparse.Namespace:
        return argparse.Namespace(user_model_url=url, user_model=model)

    async with user_factory(flags("", "")) as make_user:
        assert make_user is ScriptedUser
    async with user_factory(flags("http://127.0.0.1:1/v1", "m")) as make_user:
        assert isinstance(make_user("a", STUDENT, 0), ModelUser)
    with pytest.raises(ConfigError, match="given together"):
        async with user_factory(flags("http://127.0.0.1:1/v1", "")):
            pass
