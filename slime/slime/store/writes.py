"""Writes of turns: append, attach, exclude, abort, mark trained; leases and opinions have their own files.

Each function is one job of the writer: it runs inside a savepoint, so it happens whole or not at all.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from slime.errors import IllegalTransition, StoreError
from slime.store import records
from slime.store.notes import put_keys
from slime.store.reads import TurnReader, find_seq, need_seq
from slime.store.states import check_birth, check_move
from slime.store.trunks import NO_TRUNK, Trunk, TrunkCache, load_trunk
from slime.types import Message, Turn, TurnKind, TurnState

MAX_KNOWN_CONTENTS = 100_000


@dataclass(slots=True)
class Memory:
    """What the writer knows without reading; emptied whenever something was rolled back."""

    trunks: TrunkCache = field(default_factory=TrunkCache)
    contents: dict[bytes, int] = field(default_factory=dict)

    def forget(self) -> None:
        self.trunks.clear()
        self.contents.clear()


def append(
    connection: sqlite3.Connection,
    memory: Memory,
    turn: Turn,
    next_state_of: tuple[str, Sequence[Message]] | None,
    keys: Sequence[bytes] = (),
) -> None:
    """Store a turn; what its request says about an earlier reply goes there in the same transaction."""
    is_ready = turn.state is TurnState.SERVED and turn.next_state is not None and turn.kind.is_trainable
    state = TurnState.READY if is_ready else turn.state
    check_birth(turn.turn_id, state)
    base = _find_base(connection, memory, turn)
    numbers, names = put_contents(connection, memory, records.contents_of(turn))
    *messages, tools_id, reply_id = numbers
    ids = prompt, token_ids, logprobs = records.packed_ids(turn)
    body = records.encode_body(turn)
    crc = records.turn_checksum(turn, names, ids, body)
    stored = connection.execute(
        "INSERT INTO turns (turn_id, session_id, parent_id, kind, state, reason) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (turn_id) DO NOTHING RETURNING seq",
        (
            turn.turn_id,
            turn.session_id,
            turn.parent_id,
            turn.kind,
            state,
            turn.reason if state is TurnState.EXCLUDED else "",
        ),
    ).fetchall()
    if not stored:
        return _check_same(connection, turn.turn_id, crc)
    seq = int(stored[0][0])
    shared = records.shared_ids(base.fed, prompt)
    connection.execute(
        "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            seq,
            time.time(),
            turn.created_at,
            base.seq or None,
            records.splice(messages, base.contents),
            shared,
            prompt[shared * records.ID_BYTES :],
            token_ids,
            logprobs,
            reply_id,
            tools_id,
            body,
            crc,
        ),
    )
    put_keys(connection, seq, keys)
    memory.trunks.put(turn.turn_id, Trunk(seq, prompt + token_ids, (*messages, reply_id)))
    if turn.next_state is not None:
        _add_next_state(connection, memory, seq, None, turn.next_state)
    if next_state_of is not None:
        answered, next_state = next_state_of
        trunk = memory.trunks.get(answered)
        answered_seq = find_seq(connection, answered) if trunk is None else trunk.seq
        if answered_seq is not None:  # its own append may have failed: that loses the earlier turn, not this one
            _attach(connection, memory, answered_seq, answered, turn.turn_id, next_state)


def attach(connection: sqlite3.Connection, memory: Memory, turn_id: str, next_state: Sequence[Message]) -> None:
    _attach(connection, memory, need_seq(connection, turn_id), turn_id, None, next_state)


def exclude(connection: sqlite3.Connection, turn_ids: Sequence[str], reason: str) -> None:
    for turn_id in turn_ids:
        seq = need_seq(connection, turn_id)
        if state_of(connection, seq) is not TurnState.EXCLUDED:
            move(connection, seq, turn_id, TurnState.EXCLUDED, reason)


def abort(connection: sqlite3.Connection, turn_id: str, reason: str) -> None:
    seq = need_seq(connection, turn_id)
    if state_of(connection, seq) is not TurnState.ABORTED:
        move(connection, seq, turn_id, TurnState.ABORTED, reason)


def mark_trained(connection: sqlite3.Connection, turn_ids: Sequence[str], step: int) -> None:
    """Each turn once in a lineage: at the same step again is the same call again, at another one is refused."""
    for turn_id in turn_ids:
        seq = need_seq(connection, turn_id)
        (trained_at,) = connection.execute("SELECT step FROM turns WHERE seq = ?", (seq,)).fetchone()
        if trained_at == step:
            continue
        if trained_at is not None:
            raise IllegalTransition(f"turn {turn_id} was trained at step {trained_at} and cannot be again at {step}")
        move(connection, seq, turn_id, TurnState.TRAINED, f"step {step}")
        connection.execute("UPDATE turns SET step = ? WHERE seq = ?", (step, seq))


def rewind(connection: sqlite3.Connection, step: int) -> int:
    rows = connection.execute("SELECT seq, turn_id FROM turns WHERE step > ? ORDER BY seq", (step,)).fetchall()
    for seq, turn_id in rows:
        move(connection, seq, turn_id, TurnState.JUDGED, f"rewound to step {step}")
        connection.execute("UPDATE turns SET step = NULL WHERE seq = ?", (seq,))
    return len(rows)


LEASED = (TurnState.CLAIMED, TurnState.JUDGED)
"""States in which a turn may be held; leaving them ends the lease."""


def move(connection: sqlite3.Connection, seq: int, turn_id: str, target: TurnState, note: str) -> None:
    """Make one move of the table and write it down."""
    _write_move(connection, seq, turn_id, state_of(connection, seq), target, note)


def _write_move(
    connection: sqlite3.Connection, seq: int, turn_id: str, source: TurnState, target: TurnState, note: str
) -> None:
    check_move(turn_id, source, target)
    reason = note if target is TurnState.EXCLUDED else ""
    connection.execute("UPDATE turns SET state = ?, reason = ? WHERE seq = ?", (target, reason, seq))
    if source in LEASED and target not in LEASED:
        connection.execute(
            "UPDATE turns SET lease_owner = NULL, lease_from = NULL, lease_until = NULL WHERE seq = ?", (seq,)
        )
    connection.execute(
        "INSERT INTO transitions (seq, from_state, to_state, at, note) VALUES (?, ?, ?, ?, ?)",
        (seq, source, target, time.time(), note),
    )


def state_of(connection: sqlite3.Connection, seq: int) -> TurnState:
    (state,) = connection.execute("SELECT state FROM turns WHERE seq = ?", (seq,)).fetchone()
    return TurnState(state)


def _check_same(connection: sqlite3.Connection, turn_id: str, crc: int) -> None:
    """The same turn again is the same call again; another one under its id is refused."""
    seq = need_seq(connection, turn_id)
    (stored,) = connection.execute("SELECT crc FROM records WHERE seq = ?", (seq,)).fetchone()
    if stored == crc:
        return
    turn = TurnReader(connection).turn(seq)  # of an earlier program, which wrote the same turn otherwise?
    names = [records.content_hash(records.encode_json(value)) for value in records.contents_of(turn)]
    if records.turn_checksum(turn, names, records.packed_ids(turn), records.encode_body(turn)) != crc:
        raise StoreError(f"another turn is stored as {turn_id}; turn ids must be unique")


def _find_base(connection: sqlite3.Connection, memory: Memory, turn: Turn) -> Trunk:
    """The stored turn that shares most with this one: the request it repeats, else its parent."""
    for turn_id in (turn.retry_of, turn.parent_id):
        if turn_id is None:
            continue
        trunk = memory.trunks.get(turn_id)
        if trunk is not None:
            return trunk
        seq = find_seq(connection, turn_id)
        if seq is not None:
            trunk = load_trunk(connection, seq)
            memory.trunks.put(turn_id, trunk)
            return trunk
    return NO_TRUNK


def put_contents(
    connection: sqlite3.Connection, memory: Memory, values: Sequence[object]
) -> tuple[list[int], list[bytes]]:
    """Number and hash of each value, those that are new stored under a new number."""
    numbers: list[int] = []
    names: list[bytes] = []
    for value in values:
        body = records.encode_json(value)
        name = records.content_hash(body)
        number = memory.contents.get(name)
        if number is None:
            number = _put_content(connection, name, body)
            if len(memory.contents) >= MAX_KNOWN_CONTENTS:
                memory.contents.clear()
            memory.contents[name] = number
        numbers.append(number)
        names.append(name)
    return numbers, names


def _put_content(connection: sqlite3.Connection, name: bytes, body: bytes) -> int:
    stored = connection.execute(
        "INSERT INTO contents (hash, body) VALUES (?, ?) ON CONFLICT (hash) DO NOTHING RETURNING content_id",
        (name, body),
    ).fetchall()
    if not stored:
        stored = connection.execute("SELECT content_id FROM contents WHERE hash = ?", (name,)).fetchall()
    return int(stored[0][0])


def _attach(
    connection: sqlite3.Connection,
    memory: Memory,
    seq: int,
    turn_id: str,
    from_turn: str | None,
    next_state: Sequence[Message],
) -> None:
    """The first next state makes a trainable turn ready; later ones are kept beside it and change nothing."""
    _add_next_state(connection, memory, seq, from_turn, next_state)
    state, kind = connection.execute("SELECT state, kind FROM turns WHERE seq = ?", (seq,)).fetchone()
    if state == TurnState.SERVED and TurnKind(kind).is_trainable:
        _write_move(connection, seq, turn_id, TurnState.SERVED, TurnState.READY, from_turn or "")


def _add_next_state(
    connection: sqlite3.Connection, memory: Memory, seq: int, from_turn: str | None, next_state: Sequence[Message]
) -> None:
    numbers, _ = put_contents(connection, memory, next_state)
    packed = records.pack_ids(numbers)
    connection.execute(
        "INSERT INTO next_states (seq, from_turn, content_ids, crc) VALUES (?, ?, ?, ?)",
        (seq, from_turn, packed, records.checksum((packed,))),
    )


def rewrite_header(connection: sqlite3.Connection) -> None:
    """Write the database's first page as it is: as small as a real write can be."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {int(version)}")
