"""Leases: which collector holds which turn until when, and the claims that are handed out for them.

A lease is live while `lease_from ≤ now < lease_until` on the machine's monotonic clock, which all processes
share and no clock change moves. After a reboot that clock starts anew, and the lower bound makes leases of the
time before it count as dead. Hence the clock is read inside the transaction: read before it, it could be earlier
than a lease that another process took in between, and that lease would look dead.

A collector that dies leaves its leases behind; the next claim finds them dead and takes the turns over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from slime.errors import CorruptRecord, LeaseLost
from slime.store.connection import Connection, Standing
from slime.store.opinions import is_outdated, read_feedback
from slime.store.reads import TurnReader, read_verdict
from slime.store.writes import move, set_lease
from slime.types import Feedback, Turn, TurnKind, TurnState, Verdict

FARTHEST = 64
"""How many turns back a turn knows of; what a session earned farther on reaches no turn before that."""

_TRAINABLE = ", ".join(f"'{kind}'" for kind in TurnKind if kind.is_trainable)
_DEAD = "NOT (lease_from <= :now AND :now < lease_until)"
_FREE = f"""seq IN (
    SELECT seq FROM turns WHERE state = 'ready' AND kind IN ({_TRAINABLE}) AND NOT :judged_only
    UNION ALL
    SELECT seq FROM turns WHERE state = 'judged' AND (lease_owner IS NULL OR {_DEAD})
    ORDER BY seq LIMIT :limit
) ORDER BY seq"""

# turn ─ parent ─▶ turn ─ parent ─▶ … ─ none: its history was rewritten ─▶ the session's newest turn before ─▶ …
#
# A turn that a client began anew within its session, a summary in place of the history say, goes on from whatever came
# before it, and so does one whose parent was never stored. A retry or a branch of such a turn does not: it stands
# beside that turn, not after it.
_ANCESTORS = f"""
WITH RECURSIVE line (turn_id, distance) AS (
    SELECT ?, 0
    UNION ALL
    SELECT COALESCE(parent.turn_id, CASE turns.kind WHEN '{TurnKind.MAIN}' THEN (
        SELECT earlier.turn_id FROM turns AS earlier
        WHERE earlier.session_id = turns.session_id AND earlier.seq < turns.seq AND earlier.kind IN ({_TRAINABLE})
        ORDER BY earlier.seq DESC LIMIT 1
    ) END), distance + 1
    FROM line JOIN turns USING (turn_id) LEFT JOIN turns AS parent ON parent.turn_id = turns.parent_id
    WHERE distance < ?
)
SELECT turn_id FROM line WHERE distance AND turn_id IS NOT NULL ORDER BY distance"""


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn leased to a collector, with its verdict if an earlier holder got that far, and its newest feedback."""

    turn: Turn
    verdict: Verdict | None
    feedback: Feedback | None = None


def lease_free(
    connection: Connection, limit: int, owner: str, lease_s: float, *, judged_only: bool = False
) -> list[Standing]:
    """Lease up to `limit` free turns, oldest first."""
    now = connection.clock()
    for turn in connection.standings(f"state = 'claimed' AND {_DEAD}", {"now": now}):
        _free(connection, turn, f"the lease of {turn.lease_owner} ran out")
    free = connection.standings(_FREE, {"now": now, "limit": limit, "judged_only": judged_only})
    for turn in free:
        if turn.state == TurnState.JUDGED and is_outdated(connection, turn.seq):
            turn = move(connection, turn, TurnState.READY, "feedback")
        if turn.state == TurnState.READY:
            move(connection, turn, TurnState.CLAIMED, owner)
        set_lease(connection, turn.seq, owner, now, now + lease_s)
    return free


def renew(connection: Connection, turn_ids: Sequence[str], owner: str, lease_s: float) -> None:
    """Hold these turns for `lease_s` more seconds from now; `LeaseLost`, and none renewed, if one was taken over."""
    now = connection.clock()
    for turn in map(connection.need, turn_ids):
        if turn.lease_owner != owner:
            raise LeaseLost(f"turn {turn.turn_id} is not held by {owner} any more")
        set_lease(connection, turn.seq, owner, now, now + lease_s)


def release(connection: Connection, owner: str, turn_ids: Collection[str] | None = None) -> int:
    """Free what `owner` holds of these turns, or everything, e.g. of before it was restarted; returns how many."""
    held = connection.standings("lease_owner = ?", (owner,))
    freed = [turn for turn in held if turn_ids is None or turn.turn_id in turn_ids]
    for turn in freed:
        _free(connection, turn, f"released by {owner}")
    return len(freed)


def _free(connection: Connection, turn: Standing, note: str) -> None:
    if turn.state == TurnState.CLAIMED:
        move(connection, turn, TurnState.READY, note)
    else:
        set_lease(connection, turn.seq, None)


def read_claims(connection: Connection, leased: Sequence[Standing]) -> tuple[list[Claim], dict[str, str]]:
    """Claims of the turns that can be read; by turn, what is wrong with those that cannot."""
    reader = TurnReader(connection)
    claims: list[Claim] = []
    damaged: dict[str, str] = {}
    for seq, turn_id, *_ in leased:
        try:
            turn = reader.turn(seq)
            verdict = read_verdict(connection, turn_id) if turn.state is TurnState.JUDGED else None
            feedback = read_feedback(connection, turn_id)
            goes_on_from = dict.fromkeys(connection.column(_ANCESTORS, (turn_id, FARTHEST)))  # each once
            ancestors = tuple(ancestor for ancestor in goes_on_from if ancestor != turn_id)
            claims.append(Claim(replace(turn, ancestors=ancestors), verdict, feedback[-1] if feedback else None))
        except CorruptRecord as error:
            damaged[turn_id] = str(error)
    return claims, damaged
