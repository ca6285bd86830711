"""Runs one seed of an evaluation: sessions, an optional preference drift half-way, and held-out problems.

    Plan ─▶ users ─▶ sessions ─▶ held-out problems ─▶ (drift ─▶ sessions ─▶ held-out problems) ─▶ SeedResult

This file does not train; for a model that does meanwhile, `pace` waits until it has caught up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from openclaw_test.people.assistants import Assistant
from openclaw_test.people.personas import Persona, drifted
from openclaw_test.people.sessions import Session, hold_rounds
from openclaw_test.people.users import ScriptedUser, User
from openclaw_test.suites.held_out import HeldOut, held_out
from openclaw_test.suites.scoring import PersonaScore, SeedResult, summarise

UserFactory = Callable[[str, Persona, int], User]
"""name, persona, seed → a user."""

Settle = Callable[[], Awaitable[bool]]
"""Waits until a round has been trained on; False ends the rounds."""

AssistantFactory = Callable[[Sequence[User]], Assistant]
"""the users to come → the assistant that answers them."""


@dataclass(frozen=True)
class Plan:
    """The schedule of one seed.

    Attributes:
        personas: of the users, who talk to the model concurrently.
        num_sessions: per user, over the whole trial.
        num_questions: held-out problems per persona.
        drift: each persona's replacement from half-way on, in the same order; empty for no drift.
        num_users: per persona.
    """

    personas: tuple[Persona, ...]
    num_sessions: int
    num_questions: int
    drift: tuple[Persona, ...] = ()
    num_users: int = 1
    make_user: UserFactory = ScriptedUser

    @property
    def phases(self) -> list[tuple[Persona, ...]]:
        """The personas before the drift, and after it if there is one."""
        return [self.personas, self.drift] if self.drift else [self.personas]

    def rows(self, assistant: str, results: Sequence[SeedResult]) -> list[PersonaScore]:
        """The table rows of one assistant."""
        return [summarise(assistant, persona, results) for phase in self.phases for persona in phase]


def drifts(personas: Sequence[Persona], known: Sequence[Persona]) -> tuple[Persona, ...]:
    """Each persona with the rule of the next known one: student→ta, ta→teacher, teacher→student."""
    names = [persona.name for persona in known]
    return tuple(drifted(persona, known[(names.index(persona.name) + 1) % len(known)]) for persona in personas)


async def run_trial(
    plan: Plan,
    make_assistant: AssistantFactory,
    seed: int,
    *,
    pace: Callable[[], Settle] | None = None,
    probe: Assistant | None = None,
) -> SeedResult:
    """Run all sessions and held-out problems of one seed.

    Args:
        pace: called at the start of each phase; returns the callback awaited after each round, False ends the phase.
        probe: answers the held-out problems in place of the assistant; for training runs, one that is not captured.
    """
    talkers = _users(plan, seed)
    testers = _users(plan, seed + 1_000_003)
    assistant = make_assistant([*talkers, *testers])
    sessions: list[Session] = []
    held: dict[str, HeldOut] = {}
    lengths = _halves(plan.num_sessions) if plan.drift else [plan.num_sessions]
    first_number = 0
    for phase, num_rounds in zip(plan.phases, lengths, strict=True):
        for users in (talkers, testers):
            for index, user in enumerate(users):
                user.persona = phase[index // plan.num_users]
        settle = pace() if pace is not None else None
        sessions += await hold_rounds(talkers, assistant, num_rounds, seed, settle=settle, first_number=first_number)
        first_number += num_rounds
        for tester in testers[:: plan.num_users]:
            held[tester.persona.name] = await held_out(
                probe or assistant, tester, plan.num_questions, seed, {who.name: who.keeps for who in plan.personas}
            )
    return SeedResult(seed, sessions, held)


def _users(plan: Plan, seed: int) -> list[User]:
    return [
        plan.make_user(f"{persona.name}-{number}", persona, seed)
        for persona in plan.personas
        for number in range(plan.num_users)
    ]


def _halves(num: int) -> list[int]:
    return [num - num // 2, num // 2]
