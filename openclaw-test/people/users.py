"""Simulated users: what they ask, and what they say to a reply. Scripted here; a model plays them in `model_user`.

    User.opening ─▶ system prompt, problem      User.react(reply) ─▶ Reaction: satisfied, or what they say next

A user never says a number for how good a reply was, never solves the problem, and never says the rule until a reply
breaks it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from openclaw_test.people import phrases
from openclaw_test.people.people import Person, Reaction
from openclaw_test.people.personas import Persona, Reply
from openclaw_test.people.problems import Problem, random_problem
from slime.types import Message


class User(Protocol):
    """Somebody with a hidden preference. Errors: `model_user.UserError`, when a model that plays one cannot."""

    name: str
    persona: Persona
    asked: dict[str, Problem]
    """The problems of their sessions so far, by the words of the request."""

    def next_problem(self) -> Problem: ...

    def opening(self, problem: Problem) -> list[Message]:
        """The messages a session starts with."""
        ...

    async def react(
        self, messages: Sequence[Message], problem: Problem, reply: Reply, *, is_last_try: bool
    ) -> Reaction:
        """What they say to the reply, which `messages` ends with."""
        ...


class ScriptedUser:
    """A user whose words are drawn from `phrases`; the same seed says the same.

    >>> ScriptedUser("student-0", personas(100)["student"], seed=3)
    """

    def __init__(self, name: str, persona: Persona, seed: int) -> None:
        self.name = name
        self.persona = persona
        self._seed = seed
        self.asked: dict[str, Problem] = {}
        self._rng = random.Random(f"{name} {seed} asks")

    def next_problem(self) -> Problem:
        return random_problem(self._rng, "train")

    def opening(self, problem: Problem) -> list[Message]:
        words = phrases.ask(problem.text, self._rng)
        self.asked[words] = problem
        return [{"role": "system", "content": self.persona.system}, {"role": "user", "content": words}]

    async def react(
        self, messages: Sequence[Message], problem: Problem, reply: Reply, *, is_last_try: bool
    ) -> Reaction:
        seed = self.reaction_seed(problem, reply, len(messages))
        person = Person(self.name, self.persona.wish, seed)
        is_liked = self.persona.keeps(reply)
        reaction = person.react(problem, reply.text, is_last_try=is_last_try, is_liked=is_liked)
        return reaction if reaction.text else Reaction(person.say_goodbye(), wants_again=False)

    def reaction_seed(self, problem: Problem, reply: Reply, num_messages: int, attempt: int = 0) -> int:
        """Of the words that meet a reply.

        They hang on the reply alone, not on what was said before: a user who is only asked what they would say, as a
        judge of candidates asks, will say the same afterwards.
        """
        return mixed_seed(self._seed, problem.text, reply.text, num_messages, attempt)


def mixed_seed(*parts: object) -> int:
    """A seed of 31 bits that hangs on all the parts."""
    return random.Random(" ".join(map(str, parts))).getrandbits(31)


def request_seed(seed: int, user: str, session: int, attempt: int) -> int:
    """The sampling seed of a request: the same for the same place in the same evaluation, for any model."""
    return mixed_seed(seed, user, session, attempt)
