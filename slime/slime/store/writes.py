"""Writes of turns: append, attach, exclude, abort, mark trained; leases and opinions have their own files.

Each function is one job of the writer: it runs inside a savepoint, so it happens whole or not at all. The public ones
are methods of `Store`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from slime.errors import IllegalTransition, StoreError
from slime.store import records
from slime.store.connection import Connection, Standing
from slime.store.notes import put_keys
from slime.store.reads import TurnReader
from slime.store.states import check_birth, check_move
from slime.store.trunks import NO_TRUNK, Trunk, load_trunk
from slime.types import Message, Turn, TurnState

MAX_KNOWN_CONTENTS = 100_000

LEASED = (TurnState.CLAIMED, TurnState.JUDGED)
"""States in which a turn may be held; leaving them ends the lease."""


def append(
    connection: Connection,
    turn: Turn,
    next_state_of: tuple[str, Sequence[Message]] | None = None,
    keys: Sequence[bytes] = (),
) -> None:
    """Store a turn; what its request says about an earlier reply goes there in the same transaction."""
    is_ready = turn.state is TurnState.SERVED and turn.next_state is not None and turn.kind.is_trainable
    state = TurnState.READY if is_ready else turn.state
    check_birth(turn.turn_id, state)
    base = _find_base(connection, turn)
    numbers, names = put_contents(connection, records.contents_of(turn))
    *messages, tools_id, reply_id = numbers
    ids = prompt, token_ids, logprobs = records.packed_ids(turn)
    body = records.encode_json(records.body_of(turn))
    crc = records.turn_checksum(turn, names, ids, body)
    reason = turn.reason if state is TurnState.EXCLUDED else ""
    stored = connection.column(
        "INSERT INTO turns (turn_id, session_id, parent_id, kind, state, reason) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (turn_id) DO NOTHING RETURNING seq",
        (turn.turn_id, turn.session_id, turn.parent_id, turn.kind, state, reason),
    )
    if not stored:
        return _check_same(connection, turn.turn_id, crc)
    [seq] = stored
    shared = records.shared_ids(base.fed, prompt)
    connection.execute(
        "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(seq, time.time(), turn.created_at, base.seq or None),
            *(records.splice(messages, base.contents), shared, prompt[shared * records.ID_BYTES :]),
            *(token_ids, logprobs, reply_id, tools_id, body, crc),
        ),
    )
    put_keys(connection, seq, keys)
    trunk = Trunk(seq, prompt + token_ids, (*messages, reply_id))
    connection.trunks.put(turn.turn_id, trunk, trunk.size)
    if turn.next_state is not None:
        _add_next_state(connection, seq, None, turn.next_state)
    if next_state_of is not None:
        answered = connection.find(next_state_of[0])
        if answered is not None:  # its own append may have failed: that loses the earlier turn, not this one
            _attach(connection, answered, turn.turn_id, next_state_of[1])


def attach(connection: Connection, turn_id: str, next_state: Sequence[Message]) -> None:
    """Say what followed a turn, where no later request says it."""
    _attach(connection, connection.need(turn_id), None, next_state)


def exclude(connection: Connection, turn_ids: Sequence[str], reason: str) -> None:
    """Never train these turns; those excluded already keep their first reason."""
    for turn_id in turn_ids:
        _end(connection, turn_id, TurnState.EXCLUDED, reason)


def abort(connection: Connection, turn_id: str, reason: str) -> None:
    """A stored reply never reached its client: SERVED → ABORTED."""
    _end(connection, turn_id, TurnState.ABORTED, reason)


def mark_trained(connection: Connection, turn_ids: Sequence[str], step: int) -> None:
    """JUDGED → TRAINED, all or none, each turn once in a lineage.

    The same call again changes nothing; `IllegalTransition` if a turn was trained at another step.
    """
    for turn in map(connection.need, turn_ids):
        if turn.step == step:
            continue
        if turn.step is not None:
            raise IllegalTransition(
                f"turn {turn.turn_id} was trained at step {turn.step} and cannot be again at {step}"
            )
        move(connection, turn, TurnState.TRAINED, f"step {step}")
        connection.execute("UPDATE turns SET step = ? WHERE seq = ?", (step, turn.seq))


def rewind(connection: Connection, step: int) -> int:
    """Resume from the checkpoint of `step`: what was trained later is JUDGED and free again; returns how many."""
    undone = connection.standings("step > ? ORDER BY seq", (step,))
    for turn in undone:
        move(connection, turn, TurnState.JUDGED, f"rewound to step {step}")
        connection.execute("UPDATE turns SET step = NULL WHERE seq = ?", (turn.seq,))
    return len(undone)


def check_writable(connection: Connection) -> None:
    """Write the first page as it is, the smallest real write; `StoreError` if the disk or a lock is in the way."""
    (version,) = connection.one("PRAGMA user_version")
    connection.execute(f"PRAGMA user_version = {int(version)}")


# ── Shared by the jobs ───────────────────────────────────────────────────────────────────────────────────────────────


def move(connection: Connection, turn: Standing, target: TurnState, note: str) -> Standing:
    """Make one move of the table and write it down; returns how the turn stands then."""
    check_move(turn.turn_id, TurnState(turn.state), target)
    reason = note if target is TurnState.EXCLUDED else ""
    connection.execute("UPDATE turns SET state = ?, reason = ? WHERE seq = ?", (target, reason, turn.seq))
    if turn.state in LEASED and target not in LEASED:
        set_lease(connection, turn.seq, None)
    connection.execute(
        "INSERT INTO transitions (seq, from_state, to_state, at, note) VALUES (?, ?, ?, ?, ?)",
        (turn.seq, turn.state, target, time.time(), note),
    )
    return turn._replace(state=target, reason=reason)


def set_lease(
    connection: Connection, seq: int, owner: str | None, start: float | None = None, end: float | None = None
) -> None:
    """Give a turn to a holder, or free it."""
    connection.execute(
        "UPDATE turns SET lease_owner = ?, lease_from = ?, lease_until = ? WHERE seq = ?", (owner, start, end, seq)
    )


def put_contents(connection: Connection, values: Sequence[object]) -> tuple[list[int], list[bytes]]:
    """Number and hash of each value, those that are new stored under a new number."""
    numbers: list[int] = []
    names: list[bytes] = []
    known = connection.contents
    for value in values:
        body = records.encode_json(value)
        name = records.content_hash(body)
        if name not in known:
            if len(known) >= MAX_KNOWN_CONTENTS:
                known.clear()
            known[name] = _put_content(connection, name, body)
        numbers.append(known[name])
        names.append(name)
    return numbers, names


def _put_content(connection: Connection, name: bytes, body: bytes) -> int:
    found = connection.column(
        "INSERT INTO contents (hash, body) VALUES (?, ?) ON CONFLICT (hash) DO NOTHING RETURNING content_id",
        (name, body),
    ) or connection.column("SELECT content_id FROM contents WHERE hash = ?", (name,))
    return int(found[0])


def _end(connection: Connection, turn_id: str, state: TurnState, reason: str) -> None:
    turn = connection.need(turn_id)
    if turn.state != state:
        move(connection, turn, state, reason)


def _check_same(connection: Connection, turn_id: str, crc: int) -> None:
    """The same turn again is the same call again; another one under its id is refused."""
    seq = connection.need(turn_id).seq
    if connection.one("SELECT crc FROM records WHERE seq = ?", (seq,)) == (crc,):
        return
    turn = TurnReader(connection).turn(seq)  # of an earlier program, which wrote the same turn otherwise?
    names = [records.content_hash(records.encode_json(value)) for value in records.contents_of(turn)]
    body = records.encode_json(records.body_of(turn))
    if records.turn_checksum(turn, names, records.packed_ids(turn), body) != crc:
        raise StoreError(f"another turn is stored as {turn_id}; turn ids must be unique")


def _find_base(connection: Connection, turn: Turn) -> Trunk:
    """The stored turn that shares most with this one: the request it repeats, else its parent."""
    for turn_id in (turn.retry_of, turn.parent_id):
        if turn_id is None:
            continue
        trunk = connection.trunks.get(turn_id)
        if trunk is None and (stored := connection.find(turn_id)) is not None:
            trunk = load_trunk(connection, stored.seq)
            connection.trunks.put(turn_id, trunk, trunk.size)
        if trunk is not None:
            return trunk
    return NO_TRUNK


def _attach(connection: Connection, turn: Standing, from_turn: str | None, next_state: Sequence[Message]) -> None:
    """The first next state makes a trainable turn ready; later ones are kept beside it and change nothing."""
    _add_next_state(connection, turn.seq, from_turn, next_state)
    if turn.state == TurnState.SERVED and turn.is_trainable:
        move(connection, turn, TurnState.READY, from_turn or "")


def _add_next_state(connection: Connection, seq: int, from_turn: str | None, next_state: Sequence[Message]) -> None:
    numbers, _ = put_contents(connection, next_state)
    packed = records.pack_ids(numbers)
    connection.execute(
        "INSERT INTO next_states (seq, from_turn, content_ids, crc) VALUES (?, ?, ?, ?)",
        (seq, from_turn, packed, records.checksum((packed,))),
    )
