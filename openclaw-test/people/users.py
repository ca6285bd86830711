"""Scripted simulated users: their requests and their reactions to replies; `model_user` simulates them with an LLM.

    User.opening ─▶ system prompt, problem      User.react(reply) ─▶ Reaction: thanks, a complaint or a correction

A user never rates a reply with a number, never solves the problem, and never states the rule until a reply breaks it.
The judge derives the score from the user's words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from openclaw_test.people import phrases
from openclaw_test.people.personas import Persona, Reply
from openclaw_test.people.problems import Problem, final_answer, random_problem
from openclaw_test.people.styles import has_bold, has_box, has_numbered_list
from slime.types import Message

_FORMAT_OF = {"bold": has_bold, "list": has_numbered_list, "boxed": has_box}


@dataclass(frozen=True, slots=True)
class Reaction:
    """A user's next message, and whether it asks for the same problem again: `Reaction("Thanks! Bye!", False)`."""

    text: str
    wants_again: bool


class User(Protocol):
    """A simulated user with a hidden preference. Raises `model_user.UserError` if simulated by a model that fails."""

    name: str
    persona: Persona
    asked: dict[str, Problem]
    """The problems of the sessions so far, by request text."""

    def next_problem(self) -> Problem: ...

    def opening(self, problem: Problem) -> list[Message]:
        """The messages a session starts with."""
        ...

    async def react(
        self, messages: Sequence[Message], problem: Problem, reply: Reply, *, is_last_try: bool
    ) -> Reaction:
        """The reaction to the reply, which `messages` ends with."""
        ...


class ScriptedUser:
    """A user whose messages are drawn from `phrases`; deterministic per seed.

    A reaction depends on the reply alone, not on earlier messages: querying it in advance, as the scorer of candidates
    does, does not change it.

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
        application = [{"role": "system", "content": self.persona.system}] if self.persona.system else []
        return [*application, {"role": "user", "content": words}]

    async def react(
        self, messages: Sequence[Message], problem: Problem, reply: Reply, *, is_last_try: bool
    ) -> Reaction:
        rng = self._reaction_rng(self.reaction_seed(problem, reply, len(messages)))
        answer = final_answer(reply.text)
        if answer != problem.answer:
            return Reaction(phrases.correct(answer, rng), wants_again=not is_last_try)
        if self.persona.keeps(reply):
            return Reaction(phrases.say_goodbye(rng), wants_again=False)
        shown = next((name for name, is_there in _FORMAT_OF.items() if is_there(reply.text)), None)
        against = shown if self.persona.wish == "plain" else None
        return Reaction(phrases.complain(self.persona.wish, rng, against), wants_again=not is_last_try)

    def reaction_seed(self, problem: Problem, reply: Reply, num_messages: int, attempt: int = 0) -> int:
        """The seed of the reaction to a reply."""
        return mixed_seed(self._seed, problem.text, reply.text, num_messages, attempt)

    def _reaction_rng(self, seed: int) -> random.Random:
        return random.Random(f"{self.name} {seed}")


class Person(ScriptedUser):
    """A scripted user of the demo: all requests and reactions come from one random stream, in order.

    >>> Person("Ada", personas(100)["student"], seed=3)
    """

    def __init__(self, name: str, persona: Persona, seed: int) -> None:
        super().__init__(name, persona, seed)
        self._rng = random.Random(f"{name} {seed}")

    def _reaction_rng(self, seed: int) -> random.Random:
        return self._rng


def mixed_seed(*parts: object) -> int:
    """A 31-bit seed derived from all parts."""
    return random.Random(" ".join(map(str, parts))).getrandbits(31)


def request_seed(seed: int, user: str, session: int, attempt: int) -> int:
    """The sampling seed of a request: equal for the same position in the same evaluation, for any model."""
    return mixed_seed(seed, user, session, attempt)
