"""The state machine of a turn, as data.

           next state          claim            verdict           update
    SERVED ──────────▶ READY ──────────▶ CLAIMED ──────────▶ JUDGED ──────────▶ TRAINED
           or feedback   ▲   ◀──────────   │  lease ran out     │ ▲ ◀──────────   │
                         │                 ▼                    │ rewind to an older checkpoint
                         ├───────────── EXCLUDED ◀── from any of them but TRAINED
                         │ judge was out, or feedback           │
                         └──────────────────────────────────────┘ feedback

A move that does not stand in `TRANSITIONS` is refused in one place instead of being hoped against in ten.
"""

from __future__ import annotations

from collections.abc import Mapping

from slime.errors import IllegalTransition
from slime.types import TurnState

BIRTH_STATES = frozenset({TurnState.SERVED, TurnState.READY, TurnState.EXCLUDED, TurnState.ABORTED})
"""States in which a turn may enter the store."""

TRANSITIONS: Mapping[TurnState, frozenset[TurnState]] = {
    TurnState.SERVED: frozenset({TurnState.READY, TurnState.EXCLUDED, TurnState.ABORTED}),
    TurnState.READY: frozenset({TurnState.CLAIMED, TurnState.EXCLUDED}),
    TurnState.CLAIMED: frozenset({TurnState.READY, TurnState.JUDGED, TurnState.EXCLUDED}),
    TurnState.JUDGED: frozenset({TurnState.TRAINED, TurnState.EXCLUDED, TurnState.READY}),
    TurnState.TRAINED: frozenset({TurnState.JUDGED}),
    TurnState.EXCLUDED: frozenset({TurnState.READY}),
    TurnState.ABORTED: frozenset(),
}


def check_move(turn_id: str, source: TurnState, target: TurnState) -> None:
    """Raise `IllegalTransition` unless `source` → `target` stands in the table."""
    if target not in TRANSITIONS[source]:
        allowed = ", ".join(sorted(TRANSITIONS[source])) or "nothing"
        raise IllegalTransition(f"turn {turn_id} is {source} and cannot become {target}, only {allowed}")


def check_birth(turn_id: str, state: TurnState) -> None:
    """Raise `IllegalTransition` unless a turn may be stored in `state` at first."""
    if state not in BIRTH_STATES:
        raise IllegalTransition(f"turn {turn_id} cannot be stored as {state}, only {', '.join(sorted(BIRTH_STATES))}")
