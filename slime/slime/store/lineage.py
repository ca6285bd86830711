"""Ancestors of a turn within its session, nearest first.

    turn ─ parent ─▶ turn ─ parent ─▶ … ─ none: its history was rewritten ─▶ the session's newest turn before it ─▶ …

A turn that a client began anew within its session, a summary in place of the history say, goes on from whatever came
before it, and so does one whose parent was never stored. A retry or a branch of such a turn does not: it stands beside
that turn, not after it.
"""

from __future__ import annotations

import sqlite3

from slime.store.reads import find_seq
from slime.types import TurnKind

FARTHEST = 64
"""How many turns back a turn knows of; what a session earned farther on reaches no turn before that."""

_KINDS = ", ".join(f"'{kind}'" for kind in TurnKind if kind.is_trainable)
_BEFORE = f"SELECT turn_id FROM turns WHERE session_id = ? AND seq < ? AND kind IN ({_KINDS}) ORDER BY seq DESC LIMIT 1"


Lineage = dict[str, str | None]
"""What turns go on from, as far as it was read: much the same for the turns of one session."""


def read_ancestors(connection: sqlite3.Connection, turn_id: str, known: Lineage) -> tuple[str, ...]:
    """What a turn goes on from, nearest first; what is read on the way is added to `known`."""
    ancestors: dict[str, None] = {}
    at = turn_id
    while len(ancestors) < FARTHEST:
        if at not in known:
            known[at] = _goes_on_from(connection, at)
        before = known[at]
        if before is None or before in ancestors or before == turn_id:
            break
        ancestors[before] = None
        at = before
    return tuple(ancestors)


def _goes_on_from(connection: sqlite3.Connection, turn_id: str) -> str | None:
    row = connection.execute(
        "SELECT seq, session_id, parent_id, kind FROM turns WHERE turn_id = ?", (turn_id,)
    ).fetchone()
    if row is None:
        return None
    seq, session_id, parent_id, kind = row
    if parent_id is not None and find_seq(connection, parent_id) is not None:
        return str(parent_id)
    if kind != TurnKind.MAIN:
        return None
    before = connection.execute(_BEFORE, (session_id, seq)).fetchone()
    return None if before is None else str(before[0])
