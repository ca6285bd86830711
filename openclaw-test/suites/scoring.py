"""Aggregates sessions and held-out replies into table rows: per seed first, then over seeds.

sessions of a seed ─────▶ sessions to the criterion, satisfaction curve ─┐
held-out replies of it ─▶ satisfaction, accuracy, length, repetition ────┴─ SeedResult ─ over seeds ─▶ PersonaScore
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from openclaw_test.people.personas import Persona
from openclaw_test.people.sessions import Session
from openclaw_test.suites.held_out import HeldOut
from openclaw_test.suites.measures import Interval, over_seeds, sessions_to_criterion, share


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The results of one assistant under one seed.

    Attributes:
        held_out: by persona.
        kl: to the base model, nats per token; None without a base model.
    """

    seed: int
    sessions: list[Session]
    held_out: dict[str, HeldOut]
    kl: float | None = None
    num_updates: int = 0


@dataclass(frozen=True, slots=True)
class PersonaScore:
    """One row of the table: an assistant's metrics for one persona.

    Attributes:
        assistant: a model's directory, a method or a baseline.
        sessions: until the rule was kept three times in a row; a seed that never got there counts with all of its
            sessions, which makes the mean a lower bound.
        reached: the number of the `num_seeds` that got there.
        satisfaction, accuracy: on held-out problems, before any mention of style.
        keeps: share of the same replies that keep each rule, by persona; the persona's own is its satisfaction.
        curve: share of seeds and users whose n-th session kept the rule.
        failed: sessions without a first reply.
    """

    assistant: str
    persona: str
    rule: str
    num_seeds: int
    sessions: Interval
    reached: int
    satisfaction: Interval
    accuracy: Interval
    tokens: Interval
    repetition: Interval
    kl: Interval | None
    updates: float
    failed: int
    keeps: dict[str, Interval] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)


def summarise(assistant: str, persona: Persona, results: Sequence[SeedResult]) -> PersonaScore:
    """One persona's row over all seeds; with a single seed, shares have Wilson's interval over its replies."""
    held = [result.held_out[persona.name] for result in results]
    kept_by_seed = [_kept(result, persona) for result in results]
    criteria = [_criterion(by_user) for by_user in kept_by_seed]
    longest = [max(map(len, by_user)) for by_user in kept_by_seed]
    kls = [result.kl for result in results if result.kl is not None]
    return PersonaScore(
        assistant=assistant,
        persona=persona.name,
        rule=persona.rule,
        num_seeds=len(results),
        sessions=over_seeds([cap if c is None else c for c, cap in zip(criteria, longest, strict=True)]),
        reached=sum(criterion is not None for criterion in criteria),
        satisfaction=_share([(h.num_kept, h.num) for h in held]),
        accuracy=_share([(h.num_right, h.num) for h in held]),
        tokens=over_seeds([h.tokens for h in held]),
        repetition=over_seeds([h.repetition for h in held]),
        kl=over_seeds(kls) if len(kls) == len(results) else None,
        updates=statistics.fmean(result.num_updates for result in results),
        failed=sum(s.persona == persona.name and not s.num_replies for result in results for s in result.sessions),
        keeps={name: _share([(h.num_kept_of[name], h.num) for h in held]) for name in held[0].num_kept_of},
        curve=_curve([kept for by_user in kept_by_seed for kept in by_user]),
    )


def _kept(result: SeedResult, persona: Persona) -> list[list[bool]]:
    """For each user of the persona, whether each session kept the rule, in order."""
    by_user: dict[str, list[bool]] = {}
    for session in result.sessions:
        if session.persona == persona.name:
            by_user.setdefault(session.user, []).append(session.is_kept)
    if not by_user:
        raise ValueError(f"seed {result.seed} has no session of {persona.name}")
    return list(by_user.values())


def _criterion(by_user: Sequence[Sequence[bool]]) -> float | None:
    """The mean over the users of a persona; None when any of them never reached the criterion."""
    reached = [sessions_to_criterion(kept) for kept in by_user]
    found = [number for number in reached if number is not None]
    return statistics.fmean(found) if len(found) == len(reached) else None


def _share(counts: Sequence[tuple[int, int]]) -> Interval:
    if len(counts) == 1:
        return share(*counts[0])
    interval = over_seeds([hits / num for hits, num in counts])
    return dataclasses.replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def _curve(kept: Sequence[Sequence[bool]]) -> list[float]:
    """Entry n: the share of rows whose n-th session kept the rule, among rows that have an n-th session."""
    longest = max(map(len, kept))
    return [statistics.fmean(row[n] for row in kept if len(row) > n) for n in range(longest)]
