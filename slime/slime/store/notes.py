"""Look-up of turns for matching: by opaque keys, without ids and log-probs.

    append(turn, keys) ─▶ matching_keys (key, seq) ─▶ recall(keys) ─▶ TurnNote

A key is a digest that its writer makes; it says whose turn it leads to, so that nobody finds another's. Nothing is
read when the store is opened: a look-up touches the rows it returns. Their ids and log-probs stay where they are, and
their checksum, which covers these, is not looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.store import earlier, records
from slime.store.connection import Connection
from slime.types import Message, TurnKind, TurnState

MAX_SEQS = 256
"""Turns that one look-up returns."""
MAX_PER_KEY, MAX_SESSIONS, MAX_PER_SESSION = 16, 8, 16
"""The newest turns under a key; sessions of those found of which the newest turns are read too."""

NOTE = """
SELECT turn_id, session_id, parent_id, kind, state, created_at, records.body AS body, contents.body AS reply
FROM turns JOIN records USING (seq) JOIN contents ON content_id = reply_id
WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq
"""
SESSIONS = "SELECT session_id FROM json_each(?) JOIN turns ON seq = value GROUP BY session_id ORDER BY MIN(key) LIMIT ?"


@dataclass(frozen=True, slots=True)
class TurnNote:
    """A turn less its ids, its log-probs and its request; attributes as in `Turn`."""

    turn_id: str
    session_id: str
    parent_id: str | None
    kind: TurnKind
    state: TurnState
    reply: Message
    retry_of: str | None
    created_at: float
    matching: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a look-up found.

    Attributes:
        notes: the turns asked for, and the newest turns of their sessions; oldest first.
        beginnings: of each session asked for that exists, its first turn.
    """

    notes: tuple[TurnNote, ...] = ()
    beginnings: Mapping[str, TurnNote] = field(default_factory=dict)


def put_keys(connection: Connection, seq: int, keys: Iterable[bytes]) -> None:
    connection.executemany("INSERT OR IGNORE INTO matching_keys VALUES (?, ?)", ((key, seq) for key in keys))


def read_recalled(
    connection: Connection, keys: Sequence[bytes], turn_ids: Sequence[str] = (), session_ids: Sequence[str] = ()
) -> Recalled:
    """The turns with these keys or ids, the newest of each session they are in, and how sessions began."""
    found = [turn.seq for turn in map(connection.find, turn_ids) if turn is not None]
    for key in keys:
        newest = "SELECT seq FROM matching_keys WHERE key = ? ORDER BY seq DESC LIMIT ?"
        found += connection.column(newest, (key, MAX_PER_KEY))
    seqs = dict.fromkeys(found[:MAX_SEQS])
    for session_id in connection.column(SESSIONS, (json.dumps(list(seqs)), MAX_SESSIONS)):
        newest = "SELECT seq FROM turns WHERE session_id = ? ORDER BY seq DESC LIMIT ?"
        seqs |= dict.fromkeys(connection.column(newest, (session_id, MAX_PER_SESSION)))
    first = "SELECT seq FROM turns WHERE session_id = ? ORDER BY seq LIMIT 1"
    firsts = [seq for session_id in session_ids for seq in connection.column(first, (session_id,))]
    return Recalled(tuple(_read(connection, seqs)), {note.session_id: note for note in _read(connection, firsts)})


def read_newest_notes(connection: Connection, limit: int) -> list[TurnNote]:
    """The newest `limit` turns without what is long, oldest of them first."""
    return _read(connection, connection.column("SELECT seq FROM turns ORDER BY seq DESC LIMIT ?", (limit,)))


def read_unkeyed(connection: Connection, limit: int) -> tuple[int, list[TurnNote]]:
    """The newest turns that have no keys yet, and the row from which on all have once these do; 1 = all of them."""
    (below,) = connection.one("SELECT below FROM keys_owed")
    seqs = connection.column("SELECT seq FROM turns WHERE seq < ? ORDER BY seq DESC LIMIT ?", (below, limit))
    return (seqs[-1] if seqs else 1), _read(connection, seqs)


def add_keys(connection: Connection, keys: Mapping[str, Sequence[bytes]], below: int) -> None:
    """Give stored turns keys, by turn id; every row from `below` on, as `read_unkeyed` said, has its own now."""
    for turn_id, of_turn in keys.items():
        turn = connection.find(turn_id)
        if turn is not None:
            put_keys(connection, turn.seq, of_turn)
    connection.execute("UPDATE keys_owed SET below = ?", (below,))


def _read(connection: Connection, seqs: Iterable[int]) -> list[TurnNote]:
    """The notes of these rows, damaged ones left out: the turn is read with its checksum where it counts."""
    notes = []
    for turn_id, session_id, parent_id, kind, state, created_at, body, reply in connection.execute(
        NOTE, (json.dumps(list(seqs)),)
    ):
        try:
            kept = earlier.turn_values(records.decode_json(body))
            stands = (turn_id, session_id, parent_id, TurnKind(kind), TurnState(state))
            note = TurnNote(*stands, records.decode_json(reply), kept["retry_of"], created_at, kept["matching"])
        except (ValueError, TypeError, KeyError):
            continue
        notes.append(note)
    return notes
