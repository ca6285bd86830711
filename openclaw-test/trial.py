"""One seed of an evaluation: the users come, talk, perhaps change their taste half-way, and are tested on what is new.

    Plan ─▶ users ─▶ sessions ─▶ held-out problems ─▶ (drift ─▶ sessions ─▶ held-out problems) ─▶ SeedResult

Whether the model learns meanwhile is not this file's business: for one that does, `pace` waits until it has.
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
"""Waits until a round has been learned from; False when no further one is wanted."""

AssistantFactory = Callable[[Sequence[User]], Assistant]
"""The users there will be → who answers them."""


@dataclass(frozen=True)
class Plan:
    """What happens in every seed.

    Attributes:
        personas: who talks to the model, all at once.
        num_sessions: of each user, over the whole trial.
        num_questions: held-out problems for each persona.
        drift: what each persona wants from half-way on, in their order; empty for no drift.
        num_users: of each persona.
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
        """The lines of the table for one assistant."""
        return [summarise(assistant, persona, results) for phase in self.phases for persona in phase]


def drifts(personas: Sequence[Persona], known: Sequence[Persona]) -> tuple[Persona, ...]:
    """Everybody takes over the rule of the next persona that is known: student→ta, ta→teacher, teacher→student."""
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
    """All sessions and held-out problems of one seed.

    Args:
        pace: called at the beginning of each phase: what is awaited after each of its rounds; False ends the phase.
        probe: who answers the held-out problems, if not the same; a run that trains is asked where nothing is captured.
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
