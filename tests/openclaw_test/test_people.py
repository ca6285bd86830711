"""People with hidden preferences: what they make of replies, and whether a judge hears it in their words."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from openai import AsyncOpenAI
from openclaw_test.people.assistants import StreamedAssistant
from openclaw_test.people.personas import PLAIN, Reply, personas
from openclaw_test.people.problems import Problem, final_answer, is_held_out, random_problem
from openclaw_test.people.sessions import Crowd, Exchange, hold_session
from openclaw_test.people.styles import FORMATS, Style, is_plain, write_reply
from openclaw_test.people.users import Person, Reaction, ScriptedUser
from slime.judging.rules.judge import RuleJudge
from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, VersionSpan


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


def react(problem: Problem, text: str, seed: int, *, is_last_try: bool = False) -> Reaction:
    person = Person("Ada", PLAIN, seed)
    return asyncio.run(person.react([], problem, Reply(text, 8), is_last_try=is_last_try))


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_person_thanks_for_what_they_like_and_complains_about_the_rest_in_words_a_judge_reads(format_name: str):
    rng = random.Random(5)
    misread = 0
    for seed in range(60):
        problem = random_problem(rng, "train")
        reply = write_reply(problem, Style(format_name, "neutral"), rng)  # type: ignore[arg-type]
        reaction = react(problem, reply, seed)
        assert reaction.wants_again == (format_name != "plain")
        assert str(problem.answer) not in reaction.text
        misread += judged(problem.text, reply, reaction.text) != (-1 if reaction.wants_again else 1)
    assert misread <= 1


def test_a_wrong_answer_is_corrected_whatever_its_style_and_the_right_one_is_not_given_away():
    rng = random.Random(7)
    for seed in range(60):
        problem = random_problem(rng, "train")
        reaction = react(problem, f"That makes {problem.answer + 1}.", seed)
        assert reaction.wants_again
        assert str(problem.answer) not in reaction.text.replace(str(problem.answer + 1), "")
        assert judged(problem.text, f"That makes {problem.answer + 1}.", reaction.text) == -1


def test_nobody_asks_a_third_time():
    reaction = react(random_problem(random.Random(0), "train"), "**no idea**", 1, is_last_try=True)
    assert reaction.text
    assert not reaction.wants_again


class InTurn:
    """Answers in a format that the problem and the attempt decide: mostly right, never liked twice."""

    def __init__(self, user: ScriptedUser) -> None:
        self.user = user
        self.heard: list[str] = []

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        said = [message["content"] for message in messages if message["role"] == "user"]
        self.heard.append(said[-1])
        problem = self.user.asked[said[0]]
        n = problem.answer
        texts = (f"**{n}**", f"That makes {n}.", f"1. {n + 1}", f"The answer is $\\boxed{{{n}}}$.")
        return Reply(texts[(int(re.findall(r"\d+", said[0])[0]) + len(said)) % 4], 9)


WORDS = {
    "person": [
        "Hi! There are 10 books on the table. Anna takes 7 of them. How many books are on the table now?",
        "I don't like this. Please write that again with no box.",
        "Sorry, that is not right for me. Again without the bold, please. Could you write it plainly, without any "
        "formatting?",
        "Please help: Tom buys 5 bags with 2 tickets in each bag. How many tickets does Tom buy?",
        "No, 11 is not correct. Please check it again.",
        "Hmm, I can't use it like this. Try again without the box.",
        "There are 2 cards on the table and 2 on the floor. How many cards are there?",
        "I don't like this. Please write that again without a boxed answer.",
        "I can't hand this in. Try again without bold text. Write it plainly, without any formatting.",
    ],
    "user": [
        "Can you help me? Anna buys 4 bags with 3 pens in each bag. How many pens does Anna buy?",
        "Thank you! I like how you wrote it. I am done for today.",
        "Ben needs 9 pens and has 7. How many pens does Ben still need?",
        "This is a mistake. Try again.",
        "No, not like that. Again without the box, please.",
        "Hi! Noah finds 4 stamps and Anna finds 8. How many stamps do they have together?",
        "Thanks! That was all.",
    ],
}
"""What a seed has always said: figures that were published rest on it."""


async def test_a_seed_says_what_it_has_always_said():
    person = Person("Ada", PLAIN, 1001)
    user = ScriptedUser("student-0", personas(34)["student"], 3)
    for who, kind in ((person, "person"), (user, "user")):
        assistant = InTurn(who)
        for number in range(3):
            await hold_session(who, assistant, number, seed=3)
        assert assistant.heard == WORDS[kind]


async def test_a_crowd_talks_until_it_is_told_to_stop_and_each_request_is_seen():
    ada, bo = Person("Ada", PLAIN, 1), Person("Bo", PLAIN, 1)
    seen: list[Exchange] = []

    class Flaky(InTurn):
        async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
            await asyncio.sleep(0)
            if user == "Bo":
                raise httpx.ReadError("the stream broke off")
            return await super().reply(messages, user=user, seed=seed)

    def watch(exchange: Exchange) -> None:
        seen.append(exchange)
        if len(seen) == 40:
            crowd.stop()

    crowd = Crowd([ada, bo], Flaky(ada))
    await asyncio.wait_for(crowd.talk(watch), 20)
    failed = [exchange for exchange in seen if exchange.error]
    assert [(exchange.user, exchange.reply) for exchange in failed] == [("Bo", None)]
    assert "broke off" in failed[0].error
    firsts = [exchange for exchange in seen if exchange.attempt == 0 and not exchange.error]
    assert len(firsts) > 8
    assert all(exchange.is_kept is not None and exchange.is_right is not None for exchange in firsts)
    assert seen[-1].user == "Ada"
    assert (seen[-1].attempt, seen[-1].is_kept) == (2, None)  # a session under way is brought to its end


async def test_a_streamed_reply_is_timed_and_a_stream_that_breaks_off_is_a_failed_request():
    frames = [
        {"choices": [{"index": 0, "delta": {"content": "It is "}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "7."}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}},
    ]
    is_whole = True

    async def stream() -> AsyncIterator[bytes]:
        for frame in frames:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", **frame}
            yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
            if not is_whole:
                raise httpx.ReadError("the stream broke off")
        yield b"data: [DONE]\n\n"

    def answer(request: httpx.Request) -> httpx.Response:
        assert "seed" not in json.loads(request.content)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream())

    http_client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with AsyncOpenAI(base_url="http://server/v1", api_key="k", http_client=http_client, max_retries=0) as client:
        assistant = StreamedAssistant(client, "m", max_tokens=64)
        reply = await assistant.reply([{"role": "user", "content": "3 + 4?"}], user="Ada", seed=1)
        assert (reply.text, reply.num_tokens) == ("It is 7.", 4)
        assert reply.first_token_s is not None
        is_whole = False
        seen: list[Exchange] = []
        session = await hold_session(Person("Ada", PLAIN, 1), assistant, 0, 0, seen.append)
    assert session.error
    assert [exchange.error for exchange in seen] == [session.error]
