"""Runs sessions: a user asks a problem, complains at most once, and leaves; the outcomes feed the metrics.

    users × rounds ─▶ hold_session(user, assistant) ─▶ Session: did the first reply keep the rule? was it right?
    or a Crowd          └▶ watch(Exchange): each request    └▶ between two rounds: `settle`, until the model has learned

All users of a round talk to one model concurrently; users of a crowd do not wait for each other. Sessions are numbered
per user, and the paper's metric counts them. It judges the *first* reply, before the user has mentioned style.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx
from openai import OpenAIError
from openclaw_test.people.assistants import Assistant
from openclaw_test.people.personas import Reply
from openclaw_test.people.problems import Problem, final_answer
from openclaw_test.people.users import User, request_seed
from slime.errors import OpenClawError
from slime.judging.rules.judge import weigh
from slime.types import Message

MAX_TRIES = 2
_AFTER_FAILURE_S = 0.5
"""Back-off of a user after a failed session, so that a restarting server is not overloaded."""
_FAILURES = (OpenAIError, httpx.HTTPError, TimeoutError)
"""Errors of a failed request; a broken stream raises none of the OpenAI client's own."""


@dataclass(frozen=True, slots=True)
class Session:
    """The outcome of one conversation, as the metrics need it.

    >>> Session("student-0", "student", 7, "It comes to 7 apples.", True, True, num_replies=1, num_tokens=8)

    Attributes:
        number: index among the user's sessions, from 0.
        first_reply: the reply before any mention of style.
        is_kept, is_right: whether that reply kept the persona's rule, and gave the right answer.
        num_replies: until the user was satisfied or gave up, without the closing one.
        num_tokens: of the first reply.
        error: why the session failed; a session without any reply counts only as failed.
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


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its outcome.

    Attributes:
        attempt: at the session's problem, from 0; `MAX_TRIES` for the closing message.
        is_kept, is_right: as in `Session`; None without a reply, or for the closing message.
        error: why the request failed; empty on success.
    """

    user: str
    request: str
    attempt: int
    reply: Reply | None = None
    is_kept: bool | None = None
    is_right: bool | None = None
    error: str = ""


Watch = Callable[[Exchange], None]


async def hold_session(
    user: User, assistant: Assistant, number: int, seed: int, watch: Watch = lambda exchange: None
) -> Session:
    """Ask one problem, retrying at most once; the closing message carries the feedback on the last reply.

    Args:
        watch: called after each request, also after a failed one.
    """
    problem = user.next_problem()
    messages = user.opening(problem)
    replies: list[Reply] = []
    persona = user.persona

    async def say(attempt: int) -> Reply:
        request = str(messages[-1]["content"])
        try:
            reply = await assistant.reply(messages, user=user.name, seed=request_seed(seed, user.name, number, attempt))
        except _FAILURES as failure:
            watch(Exchange(user.name, request, attempt, error=_named(failure)))
            raise
        messages.append({"role": "assistant", "content": reply.text})
        judged = (None, None) if attempt == MAX_TRIES else (persona.keeps(reply), _is_right(problem, reply))
        watch(Exchange(user.name, request, attempt, reply, *judged))
        return reply

    error = ""
    try:
        for attempt in range(MAX_TRIES):
            replies.append(await say(attempt))
            reaction = await user.react(messages, problem, replies[-1], is_last_try=attempt == MAX_TRIES - 1)
            messages.append({"role": "user", "content": reaction.text})
            if not reaction.wants_again:
                break
        await say(MAX_TRIES)
    except (*_FAILURES, OpenClawError) as failure:  # the boundary: a request or a simulator that failed
        error = _named(failure)
    if not replies:
        return Session(user.name, persona.name, number, error=error or "no reply")
    first = replies[0]
    return Session(
        user.name,
        persona.name,
        number,
        first_reply=first.text,
        is_kept=persona.keeps(first),
        is_right=_is_right(problem, first),
        num_replies=len(replies),
        num_tokens=first.num_tokens,
        error=error,
    )


def _is_right(problem: Problem, reply: Reply) -> bool:
    return final_answer(reply.text) == problem.answer


def _named(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"


class Crowd:
    """Users who talk concurrently, each in one session after another, until stopped."""

    def __init__(self, users: Sequence[User], assistant: Assistant) -> None:
        self._users = users
        self._assistant = assistant
        self._is_over = False

    async def talk(self, watch: Watch) -> None:
        """Run until `stop`; sessions in progress are finished."""
        await asyncio.gather(*(self._talk_alone(user, watch) for user in self._users))

    def stop(self) -> None:
        self._is_over = True

    async def _talk_alone(self, user: User, watch: Watch) -> None:
        for number in itertools.count():
            if self._is_over:
                return
            if (await hold_session(user, self._assistant, number, 0, watch)).error:
                await asyncio.sleep(_AFTER_FAILURE_S)


async def hold_rounds(
    users: Sequence[User],
    assistant: Assistant,
    num_rounds: int,
    seed: int,
    *,
    settle: Callable[[], Awaitable[bool]] | None = None,
    first_number: int = 0,
) -> list[Session]:
    """Run rounds in which every user holds one session concurrently.

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
    """A scorer of candidates: the rule judge's score of the reaction of the user who asked."""

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
