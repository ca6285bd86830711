"""All reads of the store: decodes rows to turns and verifies each against its checksum."""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from slime.errors import CorruptRecord, StoreError
from slime.store import earlier, records
from slime.store.trunks import NO_TRUNK, Trunk, load_trunk
from slime.types import Completion, Message, Turn, TurnKind, TurnState, Verdict, VersionSpan

log = logging.getLogger(__name__)

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
    """Whatever goes wrong while stored bytes are made into values again is damage, and said so."""
    try:
        yield
    except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
        raise CorruptRecord(f"{what} cannot be decoded: {error}") from error
    except sqlite3.DatabaseError as error:
        if type(error) is sqlite3.DatabaseError:  # SQLITE_CORRUPT, SQLITE_NOTADB: the page itself is damaged
            raise CorruptRecord(f"{what} lies on a damaged page: {error}") from error
        raise


class TurnReader:
    """Reads turns over one connection; short-lived, it remembers what it has decoded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
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
        next_ids = None if row["next_ids"] is None else records.unpack_ids(row["next_ids"])
        self.messages((*numbers, row["reply_id"], row["tools_id"], *(next_ids or ())))
        self._check(row, prompt, numbers)
        self._trunks[row["seq"]] = Trunk(row["seq"], prompt + row["token_ids"], (*numbers, row["reply_id"]))

        body = earlier.turn_values(records.decode_json(row["body"]))
        reply = self._contents[row["reply_id"]][1]
        state = TurnState(row["state"])
        return Turn(
            turn_id=row["turn_id"],
            session_id=row["session_id"],
            parent_id=row["parent_id"],
            kind=TurnKind(row["kind"]),
            messages=self.messages(numbers),
            prompt_ids=records.unpack_ids(prompt),
            completion=Completion(
                records.unpack_ids(row["token_ids"]),
                records.unpack_floats(row["logprobs"]),
                reply["content"] if body["text"] is None else body["text"],
                body["finish_reason"],
                tuple(VersionSpan(*span) for span in body["spans"]),
            ),
            sampling=records.decode_sampling(body["sampling"]),
            reply=reply,
            tools=tuple(self._contents[row["tools_id"]][1]),
            next_state=None if next_ids is None else self.messages(next_ids),
            state=state,
            retry_of=body["retry_of"],
            created_at=row["created_at"],
            source=body["source"],
            reason=row["reason"] if state is TurnState.EXCLUDED else body["reason"] * (state is TurnState.ABORTED),
            template_options=body["template_options"],
            matching=body["matching"],
            details=body["details"],
        )

    def _base(self, base_seq: int | None) -> Trunk:
        if base_seq is None:
            return NO_TRUNK
        if base_seq not in self._trunks:
            self._trunks[base_seq] = load_trunk(self._connection, base_seq)
        return self._trunks[base_seq]

    def _fetch_contents(self, numbers: set[int]) -> None:
        """Read those contents that are not at hand; a body that its hash does not name counts as missing."""
        missing = [number for number in numbers if number not in self._contents]
        if not missing:
            return
        rows = self._connection.execute(
            "SELECT content_id, hash, body FROM contents WHERE content_id IN (SELECT value FROM json_each(?))",
            (json.dumps(missing),),
        )
        for content_id, content_hash, body in rows:
            if records.content_hash(body) == content_hash:
                self._contents[content_id] = (content_hash, records.decode_json(body))

    def content(self, number: int) -> tuple[bytes, Any]:
        """A content with its hash."""
        self.messages((number,))
        return self._contents[number]

    def messages(self, numbers: Sequence[int]) -> tuple[Message, ...]:
        """The messages with these content numbers."""
        self._fetch_contents(set(numbers))
        if not self._contents.keys() >= set(numbers):
            raise CorruptRecord("a message is missing or does not match its hash")
        return tuple(self._contents[number][1] for number in numbers)

    def _check(self, row: sqlite3.Row, prompt: bytes, numbers: Sequence[int]) -> None:
        names = [self._contents[number][0] for number in (*numbers, row["tools_id"], row["reply_id"])]
        who = records.identity(row["turn_id"], row["session_id"], row["parent_id"], row["kind"], row["created_at"])
        crc = records.checksum((*who, *names, prompt, row["token_ids"], row["logprobs"], row["body"]))
        if crc != row["crc"]:
            raise CorruptRecord(f"turn {row['turn_id']} does not match its checksum")
        if row["next_ids"] is not None and records.checksum((row["next_ids"],)) != row["next_crc"]:
            raise CorruptRecord(f"the next state of turn {row['turn_id']} does not match its checksum")


def find_seq(connection: sqlite3.Connection, turn_id: str) -> int | None:
    """The row of a turn; None if the store does not have it."""
    row = connection.execute("SELECT seq FROM turns WHERE turn_id = ?", (turn_id,)).fetchone()
    return None if row is None else int(row[0])


def need_seq(connection: sqlite3.Connection, turn_id: str) -> int:
    """The row of a turn that must be there."""
    seq = find_seq(connection, turn_id)
    if seq is None:
        raise StoreError(f"no turn {turn_id} is stored")
    return seq


def read_turn(connection: sqlite3.Connection, turn_id: str) -> Turn | None:
    seq = find_seq(connection, turn_id)
    return None if seq is None else TurnReader(connection).turn(seq)


def read_session(connection: sqlite3.Connection, session_id: str) -> list[Turn]:
    rows = connection.execute("SELECT seq FROM turns WHERE session_id = ? ORDER BY seq", (session_id,)).fetchall()
    return TurnReader(connection).turns(seq for (seq,) in rows)


def read_session_ids(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT session_id FROM turns GROUP BY session_id ORDER BY MIN(seq)")
    return [session_id for (session_id,) in rows]


@dataclass(frozen=True, slots=True)
class Changes:
    """How far somebody has followed a store: the newest turn and next state they have seen."""

    turn: int = 0
    next_state: int = 0


def read_changes(connection: sqlite3.Connection, after: Changes) -> tuple[Changes, list[str]]:
    """The sessions with turns or next states newer than that, and how far this look came."""
    (turn,) = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM turns").fetchone()
    (next_state,) = connection.execute("SELECT COALESCE(MAX(next_state_id), 0) FROM next_states").fetchone()
    rows = connection.execute(
        "SELECT session_id, MIN(seq) FROM turns WHERE session_id IN ("
        "SELECT session_id FROM turns WHERE seq > ? UNION "
        "SELECT session_id FROM next_states JOIN turns USING (seq) WHERE next_state_id > ?"
        ") GROUP BY session_id ORDER BY MIN(seq)",
        (after.turn, after.next_state),
    )
    return Changes(turn, next_state), [session_id for session_id, _ in rows]


def read_recent(connection: sqlite3.Connection, limit: int) -> list[Turn]:
    rows = connection.execute("SELECT seq FROM turns ORDER BY seq DESC LIMIT ?", (limit,)).fetchall()
    return TurnReader(connection).turns(seq for (seq,) in reversed(rows))


def read_next_states(connection: sqlite3.Connection, turn_id: str) -> list[tuple[str | None, tuple[Message, ...]]]:
    """All continuations of a turn, oldest first, each with the turn whose request brought it."""
    reader = TurnReader(connection)
    rows = connection.execute(
        "SELECT from_turn, content_ids, crc FROM next_states WHERE seq = ? ORDER BY next_state_id",
        (need_seq(connection, turn_id),),
    ).fetchall()
    found = []
    with damage_as_error(f"the next states of turn {turn_id}"):
        for from_turn, packed, crc in rows:
            if records.checksum((packed,)) != crc:
                raise CorruptRecord(f"a next state of turn {turn_id} does not match its checksum")
            found.append((from_turn, reader.messages(records.unpack_ids(packed))))
    return found


def read_verdict(connection: sqlite3.Connection, turn_id: str) -> Verdict | None:
    row = connection.execute(
        "SELECT body, crc FROM verdicts WHERE seq = ?", (need_seq(connection, turn_id),)
    ).fetchone()
    if row is None:
        return None
    body, crc = row
    with damage_as_error(f"the verdict on turn {turn_id}"):
        if records.checksum((body,)) != crc:
            raise CorruptRecord(f"the verdict on turn {turn_id} does not match its checksum")
        return records.verdict_from(records.decode_json(body))


def read_history(connection: sqlite3.Connection, turn_id: str) -> list[Transition]:
    seq = need_seq(connection, turn_id)
    (state, stored_at) = connection.execute(
        "SELECT state, stored_at FROM turns JOIN records USING (seq) WHERE seq = ?", (seq,)
    ).fetchone()
    moves = connection.execute(
        "SELECT from_state, to_state, at, note FROM transitions WHERE seq = ? ORDER BY transition_id", (seq,)
    ).fetchall()
    with damage_as_error(f"the history of turn {turn_id}"):
        return [
            Transition(None, TurnState(moves[0][0] if moves else state), stored_at, ""),
            *(Transition(TurnState(source), TurnState(target), at, note) for source, target, at, note in moves),
        ]


def read_counts(connection: sqlite3.Connection) -> dict[TurnState, int]:
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


def read_left_out(connection: sqlite3.Connection, after: int | None) -> LeftOut:
    """The moves after one that was seen earlier; None sees where they end, and counts none."""
    (seen,) = connection.execute("SELECT COALESCE(MAX(transition_id), 0) FROM transitions").fetchone()
    if after is None:
        return LeftOut({}, 0, seen)
    rows = connection.execute(
        "SELECT CASE WHEN instr(note, ':') THEN substr(note, 1, instr(note, ':') - 1) ELSE note END AS why, COUNT(*) "
        "FROM transitions WHERE transition_id > ? AND to_state = ? GROUP BY why",
        (after, TurnState.EXCLUDED),
    ).fetchall()
    (returned,) = connection.execute(
        "SELECT COUNT(DISTINCT seq) FROM transitions WHERE transition_id > ? AND from_state = ? AND to_state = ?",
        (after, TurnState.CLAIMED, TurnState.READY),
    ).fetchone()
    return LeftOut(dict(rows), returned, seen)


def read_trained(connection: sqlite3.Connection, step: int) -> tuple[str, ...]:
    rows = connection.execute("SELECT turn_id FROM turns WHERE step = ? ORDER BY seq", (step,))
    return tuple(turn_id for (turn_id,) in rows)


def read_step(connection: sqlite3.Connection, turn_id: str) -> int | None:
    (step,) = connection.execute("SELECT step FROM turns WHERE seq = ?", (need_seq(connection, turn_id),)).fetchone()
    return None if step is None else int(step)
