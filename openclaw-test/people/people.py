"""People with hidden preferences, who talk to a server through the official client and react in words of their own.

    Person ─ asks a problem ─▶ server ─ streams ─▶ reply ─▶ likes it? right? ─▶ thanks, complains or corrects
                                                             │                   with the next request
                                                             └▶ Exchange: what happened, for whoever watches

A person never says a number for how good a reply was, and never says the rule until a reply breaks it. What
the words were worth is for a judge to find out. `react` is the whole of a person's mind, apart from any server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openclaw_test.people import phrases
from openclaw_test.people.problems import Problem, final_answer, random_problem
from openclaw_test.people.styles import RULES, has_bold, has_box, has_numbered_list
from slime.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

MAX_TOKENS = 64
PROBLEMS_PER_SESSION = 1
_FORMAT_OF = {"bold": has_bold, "list": has_numbered_list, "boxed": has_box}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what became of it.

    Attributes:
        is_unasked: whether nothing had been said about style yet; what the model does by itself.
        is_satisfied: whether the reply keeps the person's rule; None when there was no whole reply.
        first_token_s: from sending the request to the first text; None when none came.
        error: what went wrong; empty when nothing did.
    """

    person: str
    request: str
    reply: str
    is_unasked: bool
    is_satisfied: bool | None
    is_right: bool | None
    first_token_s: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a person makes of a reply: what they say next, and whether they ask for it again."""

    text: str
    wants_again: bool


class Person:
    """Somebody who hands in homework and does not want it to look machine-written, or has another wish.

    >>> Person("Ada", rule="plain", seed=3)

    Args:
        rule: a name in `styles.RULES`.
        seed: of everything they say and ask.
    """

    def __init__(self, name: str, rule: str, seed: int) -> None:
        self.name = name
        self.rule = rule
        self._rng = random.Random(f"{name} {seed}")

    def likes(self, reply: str) -> bool:
        return RULES[self.rule](reply)

    def react(self, problem: Problem, reply: str, *, is_last_try: bool, is_liked: bool | None = None) -> Reaction:
        """Thanks when the reply is right and to their liking; else a correction or a complaint.

        Args:
            is_liked: whether it is, where their rule is about more than the text; `likes` decides when None.
        """
        answer = final_answer(reply)
        if answer == problem.answer and (self.likes(reply) if is_liked is None else is_liked):
            return Reaction("", wants_again=False)
        if answer != problem.answer:
            return Reaction(phrases.correct(answer, self._rng), wants_again=not is_last_try)
        shown = next((name for name, is_there in _FORMAT_OF.items() if is_there(reply)), None)
        against = shown if self.rule == "plain" else None
        return Reaction(phrases.complain(self.rule, self._rng, against), wants_again=not is_last_try)

    def say_goodbye(self) -> str:
        """Thanks, and the end of the session."""
        return phrases.say_goodbye(self._rng)

    async def hold_session(self, client: AsyncOpenAI, model: str, watch: Callable[[Exchange], None]) -> None:
        """One conversation of a few problems, each asked again once if the reply was not right or not liked."""
        messages: list[Message] = []
        next_words = ""
        for number in range(PROBLEMS_PER_SESSION):
            problem = random_problem(self._rng, "train")
            ask = phrases.ask if number == 0 else phrases.ask_next
            words = f"{next_words} {problem.text}" if next_words else ask(problem.text, self._rng)
            next_words = ""
            for attempt in range(2):
                messages.append({"role": "user", "content": words})
                exchange = await self._exchange(
                    client, model, messages, problem, is_unasked=number == 0 and attempt == 0
                )
                watch(exchange)
                if exchange.error:
                    return
                messages.append({"role": "assistant", "content": exchange.reply})
                reaction = self.react(problem, exchange.reply, is_last_try=attempt == 1)
                if not reaction.wants_again:
                    next_words = reaction.text
                    break
                words = reaction.text
        messages.append({"role": "user", "content": next_words or self.say_goodbye()})
        watch(await self._exchange(client, model, messages, None, is_unasked=False))

    async def _exchange(
        self, client: AsyncOpenAI, model: str, messages: list[Message], problem: Problem | None, *, is_unasked: bool
    ) -> Exchange:
        """Send the conversation and read the reply as it streams."""
        began, first_token_s, parts, error = time.perf_counter(), None, list[str](), ""
        arguments: dict[str, Any] = {"model": model, "messages": messages, "temperature": 1.0, "stream": True}
        try:
            async with asyncio.timeout(120):
                async for chunk in await client.chat.completions.create(max_tokens=MAX_TOKENS, **arguments):
                    if chunk.choices and chunk.choices[0].delta.content:
                        first_token_s = first_token_s or time.perf_counter() - began
                        parts.append(chunk.choices[0].delta.content)
        except Exception as problem_met:  # the boundary: whatever a client raises is a request that failed
            error = f"{type(problem_met).__name__}: {problem_met}"
        reply = "".join(parts)
        is_known = problem is not None and not error
        return Exchange(
            person=self.name,
            request=messages[-1]["content"],
            reply=reply,
            is_unasked=is_unasked,
            is_satisfied=self.likes(reply) if is_known else None,
            is_right=final_answer(reply) == problem.answer if problem is not None and is_known else None,
            first_token_s=first_token_s,
            error=error,
        )


class Crowd:
    """People who talk at the same time, session after session, until they are told to stop.

    Args:
        pause_s: how long each thinks between two sessions.
    """

    def __init__(self, people: list[Person], client: AsyncOpenAI, model: str, *, pause_s: float = 0.0) -> None:
        self._people = people
        self._client = client
        self._model = model
        self._pause_s = pause_s
        self._is_over = asyncio.Event()

    async def talk(self, watch: Callable[[Exchange], None]) -> None:
        """Until `stop`; the sessions under way are brought to their end."""
        await asyncio.gather(*(self._one(person, watch) for person in self._people))

    def stop(self) -> None:
        self._is_over.set()

    async def _one(self, person: Person, watch: Callable[[Exchange], None]) -> None:
        while not self._is_over.is_set():
            failed = False

            def note(exchange: Exchange) -> None:
                nonlocal failed
                failed = bool(exchange.error)
                watch(exchange)

            await person.hold_session(self._client, self._model, note)
            if failed or self._pause_s:  # a server that is being restarted is not helped by hammering
                await asyncio.sleep(max(self._pause_s, 0.5 if failed else 0.0))
