"""Sessions: a user asks, reads, complains at most once, and leaves; what came of it is what the metrics are made of.

    users × rounds ─▶ hold_session(user, assistant) ─▶ Session: did the first reply keep the rule? was it right?
                        between two rounds: `settle`, so that a model that learns has learned from the last one

All users of a round talk at the same time, to one model. Sessions are numbered per user, and the paper's metric
counts them: what is judged is the *first* reply, before anything has been said about style.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from openai import OpenAIError
from openclaw_test.people.assistants import Assistant
from openclaw_test.people.personas import Reply
from openclaw_test.people.problems import final_answer
from openclaw_test.people.users import User, request_seed
from slime.errors import OpenClawError
from slime.judging.rules.judge import weigh
from slime.types import Message

MAX_TRIES = 2


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, and what the metrics need of it.

    >>> Session("student-0", "student", 7, "It comes to 7 apples.", True, True, num_replies=1, num_tokens=8)

    Attributes:
        number: of the user's sessions, from 0.
        first_reply: before anything was said about style.
        is_kept, is_right: whether that reply held to the persona's rule, and gave the right answer.
        num_replies: until the user was satisfied or gave up; the closing one not counted.
        num_tokens: of the first reply.
        error: what broke the session off; it counts as failed, and for nothing else, if there was no reply at all.
    """

    user: str
    persona: str
    number: int
    first_reply: str = ""
    is_kept: bool = False
    is_right: bool = False
    num_replies: int = 0
    num_tokens: int = 0
    error: str = ""


async def hold_session(user: User, assistant: Assistant, number: int, seed: int) -> Session:
    """One problem, asked again at most once; the closing words tell the assistant how the last reply was received."""
    problem = user.next_problem()
    messages = user.opening(problem)
    replies: list[Reply] = []
    persona = user.persona
    error = ""
    try:
        for attempt in range(MAX_TRIES):
            replies.append(await _say(user, assistant, messages, number, attempt, seed))
            reaction = await user.react(messages, problem, replies[-1], is_last_try=attempt == MAX_TRIES - 1)
            messages.append({"role": "user", "content": reaction.text})
            if not reaction.wants_again:
                break
        await _say(user, assistant, messages, number, MAX_TRIES, seed)
    except (OpenAIError, OpenClawError) as problem_met:  # the boundary: a request or a simulator that failed
        error = f"{type(problem_met).__name__}: {problem_met}"
    if not replies:
        return Session(user.name, persona.name, number, error=error or "no reply")
    first = replies[0]
    return Session(
        user.name,
        persona.name,
        number,
        first_reply=first.text,
        is_kept=persona.keeps(first),
        is_right=final_answer(first.text) == problem.answer,
        num_replies=len(replies),
        num_tokens=first.num_tokens,
        error=error,
    )


async def _say(
    user: User, assistant: Assistant, messages: list[Message], number: int, attempt: int, seed: int
) -> Reply:
    """The assistant's next reply, which goes into `messages` too."""
    asked = request_seed(seed, user.name, number, attempt)
    reply = await assistant.reply(messages, user=user.name, seed=asked)
    messages.append({"role": "assistant", "content": reply.text})
    return reply


async def hold_rounds(
    users: Sequence[User],
    assistant: Assistant,
    num_rounds: int,
    seed: int,
    *,
    settle: Callable[[], Awaitable[bool]] | None = None,
    first_number: int = 0,
) -> list[Session]:
    """A session of every user at once, round after round.

    Args:
        settle: awaited after each round; False ends the rounds early.
        first_number: of the first round's sessions.

    Returns:
        The sessions by number, in the order of the users within a round.
    """
    held: list[Session] = []
    for number in range(first_number, first_number + num_rounds):
        held += await asyncio.gather(*(hold_session(user, assistant, number, seed) for user in users))
        if settle is not None and not await settle():
            break
    return held


def reaction_score(users: Sequence[User]) -> Callable[[Sequence[Message], str, Reply], Awaitable[float]]:
    """A judge of candidates: what the rule judge hears in the reaction of the very user who asked."""

    async def score(messages: Sequence[Message], name: str, reply: Reply) -> float:
        asked = [str(message["content"]) for message in messages if message["role"] == "user"]
        user, problem = next(
            (user, user.asked[asked[0]]) for user in users if user.name == name and asked[0] in user.asked
        )
        heard = [*messages, {"role": "assistant", "content": reply.text}]
        reaction = await user.react(heard, problem, reply, is_last_try=False)
        evidence = weigh([{"role": "user", "content": reaction.text}], asked, heard[-1])
        return float(evidence[0].score) if evidence else 0.0

    return score
