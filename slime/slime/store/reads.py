"""Reads of turns: rows are decoded, and each turn is verified against its checksum.

    turns, records, next_states ─▶ TurnReader ─▶ Turn      damaged: `CorruptRecord`, or left out of a list and logged

The functions are methods of `Store`; verdicts, feedback and look-up for matching have their own files.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from slime.errors import CorruptRecord
from slime.store import records
from slime.store.connection import Connection
from slime.store.trunks import NO_TRUNK, Trunk, load_trunk
from slime.types import Message, Turn, TurnKind, TurnState, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")

TURN = """
SELECT turns.seq, turn_id, session_id, parent_id, kind, state, reason,
       created_at, base_seq, messages, prompt_shared, prompt_tail, token_ids, logprobs, reply_id, tools_id, body,
       records.crc AS crc, next_states.content_ids AS next_ids, next_states.crc AS next_crc
FROM turns
JOIN records ON records.seq = turns.seq
LEFT JOIN next_states ON next_state_id = (SELECT MIN(next_state_id) FROM next_states WHERE seq = turns.seq)
WHERE turns.seq = ?
"""


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of a turn.

    >>> Transition(source=TurnState.READY, target=TurnState.CLAIMED, at=1790000000.5, note="collector-1")

    Attributes:
        source: None at the turn's birth.
        at: wall-clock seconds; a label, the order is that of the list.
        note: who took it, why it is excluded, or which step consumed it.
    """

    source: TurnState | None
    target: TurnState
    at: float
    note: str


@contextmanager
def damage_as_error(what: str) -> Iterator[None]:
    """What goes wrong while stored bytes are decoded is damage: `CorruptRecord`."""
    try:
        yield
    except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
        raise CorruptRecord(f"{what} is damaged: {error}") from error
    except sqlite3.DatabaseError as error:
        if type(error) is sqlite3.DatabaseError:  # SQLITE_CORRUPT, SQLITE_NOTADB: the page itself is damaged
            raise CorruptRecord(f"{what} lies on a damaged page: {error}") from error
        raise


class TurnReader:
    """Reads turns over one connection; short-lived, it remembers what it has decoded."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._trunks: dict[int, Trunk] = {}
        self._contents: dict[int, tuple[bytes, Any]] = {}

    def turn(self, seq: int) -> Turn:
        """The turn in row `seq`; `CorruptRecord` if it is not what was given."""
        cursor = self._connection.cursor()
        cursor.row_factory = sqlite3.Row
        with damage_as_error(f"row {seq}"):
            row = cursor.execute(TURN, (seq,)).fetchone()
        if row is None:
            raise CorruptRecord(f"row {seq} has no record")
        with damage_as_error(f"turn {row['turn_id']}"):
            return self._decode(row)

    def turns(self, seqs: Iterable[int]) -> list[Turn]:
        """The turns in these rows, damaged ones left out and logged."""
        found: list[Turn] = []
        for seq in seqs:
            try:
                found.append(self.turn(seq))
            except CorruptRecord as error:
                log.error("corrupt turn left out", extra={"row": seq, "error": str(error)})
        return found

    def _decode(self, row: sqlite3.Row) -> Turn:
        base = self._base(row["base_seq"])
        prompt = base.prompt(row["prompt_shared"], row["prompt_tail"])
        numbers = records.unsplice(row["messages"], base.contents)
        hashes, values = self.contents((*numbers, row["tools_id"], row["reply_id"]))
        *messages, tools, reply = values
        who = records.identity(row["turn_id"], row["session_id"], row["parent_id"], row["kind"], row["created_at"])
        records.verify(row["crc"], (*who, *hashes, prompt, row["token_ids"], row["logprobs"], row["body"]))
        self._trunks[row["seq"]] = Trunk(row["seq"], prompt + row["token_ids"], (*numbers, row["reply_id"]))
        state = TurnState(row["state"])
        reason = {} if state is TurnState.ABORTED else {"reason": row["reason"]}
        return records.turn_from(
            records.decode_json(row["body"]),
            token_ids=records.unpack_ids(row["token_ids"]),
            logprobs=records.unpack_floats(row["logprobs"]),
            reply=reply,
            **{name: row[name] for name in ("turn_id", "session_id", "parent_id", "created_at")},
            kind=TurnKind(row["kind"]),
            state=state,
            messages=tuple(messages),
            prompt_ids=records.unpack_ids(prompt),
            tools=tuple(tools),
            next_state=None if row["next_ids"] is None else self.next_state(row["next_ids"], row["next_crc"]),
            **reason,
        )

    def next_state(self, packed: bytes, crc: int) -> tuple[Message, ...]:
        """The messages that followed a turn, from their content numbers."""
        records.verify(crc, (packed,))
        return self.contents(records.unpack_ids(packed))[1]

    def contents(self, numbers: Sequence[int]) -> tuple[tuple[bytes, ...], tuple[Any, ...]]:
        """Hashes and values of these contents; a body that its hash does not name counts as missing."""
        unknown = [number for number in numbers if number not in self._contents]
        query = "SELECT content_id, hash, body FROM contents WHERE content_id IN (SELECT value FROM json_each(?))"
        for number, name, body in self._connection.execute(query, (json.dumps(unknown),)) if unknown else ():
            if records.content_hash(body) == name:
                self._contents[number] = (name, records.decode_json(body))
        if not self._contents.keys() >= set(numbers):
            raise CorruptRecord("a message is missing or does not match its hash")
        found = [self._contents[number] for number in numbers]
        return tuple(name for name, _ in found), tuple(value for _, value in found)

    def _base(self, base_seq: int | None) -> Trunk:
        if base_seq is None:
            return NO_TRUNK
        if base_seq not in self._trunks:
            self._trunks[base_seq] = load_trunk(self._connection, base_seq)
        return self._trunks[base_seq]


def read_turn(connection: Connection, turn_id: str) -> Turn | None:
    """The turn, or None; `CorruptRecord` if it is not what was given any more."""
    found = connection.find(turn_id)
    return None if found is None else TurnReader(connection).turn(found.seq)


def read_session(connection: Connection, session_id: str) -> list[Turn]:
    """The turns of a conversation in the order they were stored, damaged ones left out."""
    seqs = connection.column("SELECT seq FROM turns WHERE session_id = ? ORDER BY seq", (session_id,))
    return TurnReader(connection).turns(seqs)


def read_session_ids(connection: Connection) -> list[str]:
    """Every conversation, in the order in which they began."""
    return connection.column("SELECT session_id FROM turns GROUP BY session_id ORDER BY MIN(seq)")


@dataclass(frozen=True, slots=True)
class Changes:
    """How far a store has been followed: the newest turn and next state that were seen."""

    turn: int = 0
    next_state: int = 0


def read_changes(connection: Connection, after: Changes) -> tuple[Changes, list[str]]:
    """The conversations that went on since a look, and how far this one came; `Changes()` is the very beginning."""
    seen = connection.one(
        "SELECT (SELECT COALESCE(MAX(seq), 0) FROM turns), (SELECT COALESCE(MAX(next_state_id), 0) FROM next_states)"
    )
    changed = connection.column(
        "SELECT session_id FROM turns WHERE session_id IN ("
        "SELECT session_id FROM turns WHERE seq > ? UNION "
        "SELECT session_id FROM next_states JOIN turns USING (seq) WHERE next_state_id > ?"
        ") GROUP BY session_id ORDER BY MIN(seq)",
        (after.turn, after.next_state),
    )
    return Changes(*seen), changed


def read_recent(connection: Connection, limit: int) -> list[Turn]:
    """The newest `limit` turns, oldest of them first."""
    seqs = connection.column("SELECT seq FROM turns ORDER BY seq DESC LIMIT ?", (limit,))
    return TurnReader(connection).turns(reversed(seqs))


def read_about(connection: Connection, turn_id: str, what: str, query: str, decode: Callable[..., T]) -> list[T]:
    """What is stored about a turn, row by row; `CorruptRecord` for a row that `decode` cannot take."""
    seq = connection.need(turn_id).seq
    with damage_as_error(f"{what} turn {turn_id}"):
        return [decode(*row) for row in connection.execute(query, (seq,))]


def read_next_states(connection: Connection, turn_id: str) -> list[tuple[str | None, tuple[Message, ...]]]:
    """Every continuation of a turn, with the turn whose request brought it; the first is `Turn.next_state`."""
    reader = TurnReader(connection)

    def decode(from_turn: str | None, packed: bytes, crc: int) -> tuple[str | None, tuple[Message, ...]]:
        return from_turn, reader.next_state(packed, crc)

    query = "SELECT from_turn, content_ids, crc FROM next_states WHERE seq = ? ORDER BY next_state_id"
    return read_about(connection, turn_id, "a next state of", query, decode)


def read_verdict(connection: Connection, turn_id: str) -> Verdict | None:
    """The last verdict on a turn, if it has one."""

    def decode(body: bytes, crc: int) -> Verdict:
        records.verify(crc, (body,))
        return records.verdict_from(records.decode_json(body))

    query = "SELECT body, crc FROM verdicts WHERE seq = ?"
    return next(iter(read_about(connection, turn_id, "the verdict on", query, decode)), None)


def read_history(connection: Connection, turn_id: str) -> list[Transition]:
    """All moves of a turn, from its birth on."""
    turn = connection.need(turn_id)
    moves = connection.execute(
        "SELECT from_state, to_state, at, note FROM transitions WHERE seq = ? ORDER BY transition_id", (turn.seq,)
    ).fetchall()
    [stored_at] = connection.column("SELECT stored_at FROM records WHERE seq = ?", (turn.seq,))
    born = (None, moves[0][0] if moves else turn.state, stored_at, "")
    with damage_as_error(f"the history of turn {turn_id}"):
        return [
            Transition(None if source is None else TurnState(source), TurnState(target), at, note)
            for source, target, at, note in (born, *moves)
        ]


def read_counts(connection: Connection) -> dict[TurnState, int]:
    """How many turns stand in each state; every state is a key."""
    found = dict(connection.execute("SELECT state, COUNT(*) FROM turns GROUP BY state"))
    return {state: found.get(state, 0) for state in TurnState}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What became of turns since a look, other than training.

    Attributes:
        excluded: turns by the head of the reason, e.g. `{"stale": 12, "unjudged": 3}`.
        returned: turns that went back to wait for a judge.
        seen: how far the look came.
    """

    excluded: dict[str, int]
    returned: int
    seen: int


def read_left_out(connection: Connection, after: int | None = None) -> LeftOut:
    """What became of turns since a look that came as far as `after`; None sees where the moves end, and counts none."""
    (seen,) = connection.one("SELECT COALESCE(MAX(transition_id), 0) FROM transitions")
    after = seen if after is None else after
    excluded = connection.execute(
        "SELECT CASE WHEN instr(note, ':') THEN substr(note, 1, instr(note, ':') - 1) ELSE note END AS why, COUNT(*) "
        "FROM transitions WHERE transition_id > ? AND to_state = ? GROUP BY why",
        (after, TurnState.EXCLUDED),
    )
    (returned,) = connection.one(
        "SELECT COUNT(DISTINCT seq) FROM transitions WHERE transition_id > ? AND from_state = ? AND to_state = ?",
        (after, TurnState.CLAIMED, TurnState.READY),
    )
    return LeftOut(dict(excluded.fetchall()), returned, seen)


def read_trained(connection: Connection, step: int) -> tuple[str, ...]:
    """Lineage downwards: the turns that update `step` consumed."""
    return tuple(connection.column("SELECT turn_id FROM turns WHERE step = ? ORDER BY seq", (step,)))


def read_step(connection: Connection, turn_id: str) -> int | None:
    """Lineage upwards: the update that consumed the turn."""
    return connection.need(turn_id).step
