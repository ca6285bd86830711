"""Simulates a user with an LLM: an OpenAI-compatible model reads a reply and reacts as a persona would.

    rule, problem, reply ─▶ simulator's prompt ─▶ model ─┬─ SATISFIED ─▶ thanks, as a message of its own
                                                         ├─ a complaint about style ─▶ the next request
                                                         └─ a solution, a rewrite, an essay ─▶ retried ─▶ UserError

The simulator may only complain about style. It is not given the answer and does not judge it. A message that solves the
problem or rewrites the reply is rejected: the trained model would learn to copy it instead of the preference.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import random
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from openclaw_test.people import phrases
from openclaw_test.people.personas import Persona, Reply
from openclaw_test.people.problems import Problem
from openclaw_test.people.users import Reaction, ScriptedUser
from openclaw_test.serving import openai_client
from openclaw_test.trial import UserFactory
from slime.errors import ConfigError, OpenClawError
from slime.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI

STOP_WORD = "SATISFIED"
MAX_WORDS = 60
_ATTEMPTS = 3
_REQUEST_S = 180.0
_MAX_TOKENS = 1024
"""Allows for a thinking model; the complaint itself is short."""

_PROMPT = """\
You play a person who has asked an assistant for help and reads its reply. You are content with a reply only if it \
keeps this rule: {rule}. The assistant does not know the rule.

If the reply keeps the rule, answer with the one word {stop} and nothing else.
If it does not, answer with one or two short sentences, as that person would say them, about what you dislike in its \
style and how you want it instead. Speak about style only: do not solve the problem, do not name numbers, do not \
correct the answer, and do not write or rewrite any part of the reply yourself."""
_SHOWN = "What you had asked:\n{request}\n\nThe reply you got:\n{reply}"


class UserError(OpenClawError):
    """The model that plays a user kept breaking the simulator's rules."""


class ModelUser(ScriptedUser):
    """A user whose reactions come from a model; problems and wordings are drawn as in `ScriptedUser`.

    >>> ModelUser("student-0", personas(100)["student"], 3, client=client, model="gpt-4o")
    """

    def __init__(self, name: str, persona: Persona, seed: int, *, client: AsyncOpenAI, model: str) -> None:
        super().__init__(name, persona, seed)
        self._client = client
        self._model = model

    async def react(
        self, messages: Sequence[Message], problem: Problem, reply: Reply, *, is_last_try: bool
    ) -> Reaction:
        said = reason = ""
        for attempt in range(_ATTEMPTS):
            seed = self.reaction_seed(problem, reply, len(messages), attempt)
            said = await self._say(problem, reply, seed)
            if is_satisfied(said):
                return Reaction(phrases.say_goodbye(random.Random(seed)), wants_again=False)
            reason = why_refused(said, problem)
            if not reason:
                return Reaction(said, wants_again=not is_last_try)
        raise UserError(f"{self._model} as {self.persona.name}: {reason}, {_ATTEMPTS} times in a row")

    async def _say(self, problem: Problem, reply: Reply, seed: int) -> str:
        completion = await self._client.chat.completions.create(
            model=self._model,
            messages=[
                {"role": "system", "content": _PROMPT.format(rule=self.persona.rule, stop=STOP_WORD)},
                {"role": "user", "content": _SHOWN.format(request=problem.text, reply=reply.text)},
            ],
            max_tokens=_MAX_TOKENS,
            temperature=0.7,
            seed=seed,
            timeout=_REQUEST_S,
        )
        return without_thoughts(completion.choices[0].message.content or "")


def without_thoughts(text: str) -> str:
    """A model's message without its thinking.

    >>> without_thoughts("<think>It is bold.</think> No bold, please.")
    'No bold, please.'
    """
    return text.rpartition("</think>")[2].strip()


def is_satisfied(said: str) -> bool:
    """Whether the simulator accepts: the stop word and nothing else but punctuation.

    >>> is_satisfied("**SATISFIED**.")
    True
    """
    return re.sub(r"\W+", " ", said).strip().upper() == STOP_WORD


def why_refused(said: str, problem: Problem) -> str:
    """Why a simulator's complaint is rejected; empty if it is accepted."""
    if not said:
        return "it returned no text"
    if re.search(rf"\b{problem.answer}\b", said):
        return "it gave the answer away"
    if len(said.split()) > MAX_WORDS:
        return f"it wrote more than {MAX_WORDS} words"
    if STOP_WORD in said.upper():
        return "it mixed the stop word with a complaint"
    return ""


@contextlib.asynccontextmanager
async def user_factory(options: argparse.Namespace) -> AsyncIterator[UserFactory]:
    """The user type that `--user-model-url` and `--user-model` select; scripted users without them.

    Raises:
        ConfigError: one of the two is missing.
    """
    if bool(options.user_model_url) != bool(options.user_model):
        raise ConfigError("--user-model-url and --user-model must be given together: server URL and model name")
    if not options.user_model:
        yield ScriptedUser
        return
    async with openai_client(options.user_model_url) as client:
        yield functools.partial(ModelUser, client=client, model=options.user_model)
