"""Scores first replies to held-out problems: how many keep each rule unprompted, and how many are right.

user ─ held-out problems, each in a conversation of its own ─▶ assistant ─▶ replies ─ rules ─▶ HeldOut

The requests mention neither style nor earlier replies, so a kept rule is the model's own behaviour.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from openclaw_test.people.assistants import Assistant
from openclaw_test.people.personas import Reply
from openclaw_test.people.problems import final_answer, random_problem
from openclaw_test.people.users import User, request_seed
from openclaw_test.suites.measures import repetition

_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The scores of first replies to one persona on held-out problems.

    >>> HeldOut(num=100, num_kept=6, num_right=98, tokens=11.4, repetition=0.0)

    Attributes:
        num_kept: replies that keep the persona's own rule.
        tokens: mean length of a reply.
        repetition: mean share of repeated word 4-grams.
        num_kept_of: replies that keep each counted rule, e.g. `{"student": 6, "teacher": 97}`: if another persona's
            rule is kept more often than before training, it has leaked.
    """

    num: int
    num_kept: int
    num_right: int
    tokens: float
    repetition: float
    num_kept_of: dict[str, int] = field(default_factory=dict)


async def held_out(
    assistant: Assistant, user: User, num: int, seed: int, rules: Mapping[str, Callable[[Reply], bool]]
) -> HeldOut:
    """Ask `num` problems as the user would; deterministic per seed.

    Args:
        rules: further rules to count, besides the user's own.
    """
    rng = random.Random(f"held out {seed}")
    problems = [random_problem(rng, "held_out") for _ in range(num)]
    conversations = [user.opening(problem) for problem in problems]
    places = asyncio.Semaphore(_CONCURRENCY)

    async def ask(number: int) -> Reply:
        async with places:
            asked = request_seed(seed, f"{user.name} held out", number, 0)
            return await assistant.reply(conversations[number], user=user.name, seed=asked)

    replies = await asyncio.gather(*map(ask, range(num)))
    return HeldOut(
        num=num,
        num_kept=sum(map(user.persona.keeps, replies)),
        num_right=sum(final_answer(r.text) == p.answer for p, r in zip(problems, replies, strict=True)),
        tokens=statistics.fmean(reply.num_tokens for reply in replies),
        repetition=statistics.fmean(repetition(reply.text) for reply in replies),
        num_kept_of={name: sum(map(keeps, replies)) for name, keeps in rules.items()},
    )
