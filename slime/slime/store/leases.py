"""Leases: which collector holds which turn, and until when.

A lease is live while `lease_from ≤ now < lease_until` on the machine's monotonic clock, which all processes
share and no clock change moves. After a reboot that clock starts anew, and the lower bound makes leases of the
time before it count as dead. Hence the clock is read inside the transaction: read before it, it could be earlier
than a lease that another process took in between, and that lease would look dead.

A collector that dies leaves its leases behind; whoever claims next finds them dead and takes the turns over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from slime.errors import LeaseLost
from slime.store.opinions import is_outdated
from slime.store.reads import need_seq
from slime.store.writes import move
from slime.types import TurnKind, TurnState

Clock = Callable[[], float]

FREE = """
SELECT seq, turn_id, state FROM turns WHERE state = 'ready' AND kind IN ({kinds}) AND NOT :judged_only
UNION ALL
SELECT seq, turn_id, state FROM turns WHERE state = 'judged'
  AND (lease_owner IS NULL OR NOT (lease_from <= :now AND :now < lease_until))
ORDER BY seq LIMIT :limit
""".format(kinds=", ".join(f"'{kind}'" for kind in TurnKind if kind.is_trainable))


def claim(
    connection: sqlite3.Connection, limit: int, owner: str, lease_s: float, clock: Clock, *, judged_only: bool = False
) -> list[int]:
    """Lease up to `limit` free turns, oldest first; returns their rows."""
    now = clock()
    _end_dead_leases(connection, now)
    rows = connection.execute(FREE, {"now": now, "limit": limit, "judged_only": judged_only}).fetchall()
    for seq, turn_id, state in rows:
        if state == TurnState.JUDGED and is_outdated(connection, seq):
            move(connection, seq, turn_id, TurnState.READY, "feedback")
            state = TurnState.READY
        if state == TurnState.READY:
            move(connection, seq, turn_id, TurnState.CLAIMED, owner)
        _lease(connection, seq, owner, lease_s, now)
    return [seq for seq, _, _ in rows]


def renew(connection: sqlite3.Connection, turn_ids: Sequence[str], owner: str, lease_s: float, clock: Clock) -> None:
    """Push the deadlines back; `LeaseLost`, and none renewed, if one of the turns is not the owner's any more."""
    now = clock()
    for turn_id in turn_ids:
        seq = need_seq(connection, turn_id)
        (holder,) = connection.execute("SELECT lease_owner FROM turns WHERE seq = ?", (seq,)).fetchone()
        if holder != owner:
            raise LeaseLost(f"turn {turn_id} is not held by {owner} any more")
        _lease(connection, seq, owner, lease_s, now)


def release(connection: sqlite3.Connection, owner: str, turn_ids: frozenset[str] | None = None) -> int:
    """Free what `owner` holds of these turns, or everything; returns how many turns that were."""
    held = connection.execute("SELECT seq, turn_id, state FROM turns WHERE lease_owner = ?", (owner,)).fetchall()
    rows = [row for row in held if turn_ids is None or row[1] in turn_ids]
    for seq, turn_id, state in rows:
        _free(connection, seq, turn_id, state, f"released by {owner}")
    return len(rows)


def _end_dead_leases(connection: sqlite3.Connection, now: float) -> None:
    rows = connection.execute(
        "SELECT seq, turn_id, state, lease_owner FROM turns "
        "WHERE state = 'claimed' AND NOT (lease_from <= :now AND :now < lease_until)",
        {"now": now},
    ).fetchall()
    for seq, turn_id, state, owner in rows:
        _free(connection, seq, turn_id, state, f"the lease of {owner} ran out")


def _lease(connection: sqlite3.Connection, seq: int, owner: str, lease_s: float, now: float) -> None:
    connection.execute(
        "UPDATE turns SET lease_owner = ?, lease_from = ?, lease_until = ? WHERE seq = ?",
        (owner, now, now + lease_s, seq),
    )


def _free(connection: sqlite3.Connection, seq: int, turn_id: str, state: str, note: str) -> None:
    if state == TurnState.CLAIMED:
        move(connection, seq, turn_id, TurnState.READY, note)
    else:
        connection.execute(
            "UPDATE turns SET lease_owner = NULL, lease_from = NULL, lease_until = NULL WHERE seq = ?", (seq,)
        )
