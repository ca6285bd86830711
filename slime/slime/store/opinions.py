"""Verdicts on turns, every judgement behind them, and people's feedback, which takes precedence.

    judge ──▶ record_verdict ─┬▶ verdicts     the one that counts now
                              ├▶ judgements   each answer of each judge, for ever
                              └▶ JUDGED, or EXCLUDED
    person ─▶ add_feedback ───┬▶ feedback     each of them, for ever; the newest counts
                              └▶ READY: to be judged (again), by a judge who is told of it

Each writing function is one job of the writer: it happens whole or not at all. A verdict knows the newest feedback it
took into account, so that feedback which comes while a turn is judged, or waits to be trained, is never passed over.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import replace

from slime.errors import CorruptRecord, LeaseLost
from slime.store import records
from slime.store.reads import TurnReader, damage_as_error, find_seq, need_seq
from slime.store.states import check_move
from slime.store.writes import Memory, move, put_contents, state_of
from slime.types import Feedback, Judgement, TurnKind, TurnState, Verdict

UNJUDGED = "unjudged"
"""How the reason of an exclusion for want of a verdict begins."""

SCORE_ZERO = "score 0"

# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def record_verdict(
    connection: sqlite3.Connection, memory: Memory, turn_id: str, verdict: Verdict, owner: str, feedback_id: int
) -> bool:
    """Store what a judge said; only a turn with a verdict that says something goes on towards training."""
    seq = need_seq(connection, turn_id)
    body = records.encode_json(records.verdict_fields(verdict))
    state, holder = connection.execute("SELECT state, lease_owner FROM turns WHERE seq = ?", (seq,)).fetchone()
    if state != TurnState.CLAIMED:
        said = connection.execute("SELECT body FROM verdicts WHERE seq = ?", (seq,)).fetchone()
        if said == (body,):
            return True  # the same call again: its first answer was lost
        if state == TurnState.READY:
            raise LeaseLost(f"the lease of {owner} on turn {turn_id} ran out before its verdict came")
        check_move(turn_id, TurnState(state), TurnState.JUDGED)
    if holder != owner:
        raise LeaseLost(f"turn {turn_id} is held by {holder}, not by {owner}")
    _keep(connection, memory, seq, verdict.as_judgements())
    if _newest_feedback(connection, seq) > feedback_id:
        return False
    _put_verdict(connection, seq, body, feedback_id)
    if verdict.is_effective:
        move(connection, seq, turn_id, TurnState.JUDGED, owner)
    else:
        move(connection, seq, turn_id, TurnState.EXCLUDED, _why_excluded(verdict))
    return True


def revise_verdict(connection: sqlite3.Connection, memory: Memory, turn_id: str, verdict: Verdict) -> bool:
    """Another judge's verdict in place of the stored one, where that is nobody's yet and not a person's."""
    seq = need_seq(connection, turn_id)
    _keep(connection, memory, seq, verdict.as_judgements())
    state = state_of(connection, seq)
    (kind, holder, reason) = connection.execute(
        "SELECT kind, lease_owner, reason FROM turns WHERE seq = ?", (seq,)
    ).fetchone()
    gave_way = reason == SCORE_ZERO or reason.startswith(UNJUDGED)
    is_free = state is TurnState.READY or (state is TurnState.JUDGED and holder is None)
    is_open = is_free or (state is TurnState.EXCLUDED and gave_way)
    feedback_id = _newest_feedback(connection, seq)
    if not (is_open and TurnKind(kind).is_trainable) or feedback_id:
        return False
    _put_verdict(connection, seq, records.encode_json(records.verdict_fields(verdict)), feedback_id)
    if not verdict.is_effective:
        if state is TurnState.EXCLUDED:
            move(connection, seq, turn_id, TurnState.READY, "judged again")
        move(connection, seq, turn_id, TurnState.EXCLUDED, _why_excluded(verdict))
    elif state is not TurnState.JUDGED:
        if state is TurnState.EXCLUDED:
            move(connection, seq, turn_id, TurnState.READY, "judged again")
        move(connection, seq, turn_id, TurnState.CLAIMED, "judged again")
        move(connection, seq, turn_id, TurnState.JUDGED, "judged again")
    return True


def reopen_unjudged(connection: sqlite3.Connection, limit: int) -> int:
    rows = connection.execute(
        "SELECT seq, turn_id FROM turns WHERE state = ? AND reason LIKE ? ORDER BY seq LIMIT ?",
        (TurnState.EXCLUDED, f"{UNJUDGED}%", limit),
    ).fetchall()
    for seq, turn_id in rows:
        move(connection, seq, turn_id, TurnState.READY, "judge it again")
    return len(rows)


def read_exclusions(connection: sqlite3.Connection, limit: int) -> dict[str, int]:
    """The commonest reasons, without what a judge says of a turn it leaves unjudged: that may quote a person."""
    rows = connection.execute(
        "SELECT CASE WHEN reason LIKE :unjudged || '%' THEN :unjudged ELSE reason END AS why, COUNT(*) AS number "
        "FROM turns WHERE state = :excluded GROUP BY why ORDER BY number DESC, why LIMIT :limit",
        {"unjudged": UNJUDGED, "excluded": TurnState.EXCLUDED, "limit": limit},
    )
    return dict(rows.fetchall())


def _put_verdict(connection: sqlite3.Connection, seq: int, body: bytes, feedback_id: int) -> None:
    connection.execute(
        "INSERT INTO verdicts (seq, judged_at, body, crc, feedback_id) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (seq) DO UPDATE SET judged_at = excluded.judged_at, body = excluded.body, crc = excluded.crc, "
        "feedback_id = excluded.feedback_id",
        (seq, time.time(), body, records.checksum((body,)), feedback_id),
    )


def _why_excluded(verdict: Verdict) -> str:
    return SCORE_ZERO if verdict.is_judged else f"{UNJUDGED}: {verdict.reason or 'no reason given'}"


# ── judgements ───────────────────────────────────────────────────────────────────────────────────────────────────────


def record_judgements(
    connection: sqlite3.Connection, memory: Memory, turn_id: str, judgements: Sequence[Judgement]
) -> None:
    _keep(connection, memory, need_seq(connection, turn_id), judgements)


def _keep(connection: sqlite3.Connection, memory: Memory, seq: int, judgements: Sequence[Judgement]) -> None:
    """The votes on a turn are mostly shown the same prompt: it is stored once, as a content."""
    for judgement in judgements:
        if not judgement.created_at:
            judgement = replace(judgement, created_at=time.time())
        [prompt_id], [prompt_hash] = put_contents(connection, memory, [list(judgement.prompt)])
        body = records.encode_judgement(judgement)
        connection.execute(
            "INSERT INTO judgements (seq, prompt_id, body, crc) VALUES (?, ?, ?, ?)",
            (seq, prompt_id, body, records.checksum((prompt_hash, body))),
        )


def read_judgements(connection: sqlite3.Connection, turn_id: str) -> list[Judgement]:
    reader = TurnReader(connection)
    rows = connection.execute(
        "SELECT prompt_id, body, crc FROM judgements WHERE seq = ? ORDER BY judgement_id",
        (need_seq(connection, turn_id),),
    ).fetchall()
    found = []
    with damage_as_error(f"the judgements on turn {turn_id}"):
        for prompt_id, body, crc in rows:
            prompt_hash, prompt = reader.content(prompt_id)
            if records.checksum((prompt_hash, body)) != crc:
                raise CorruptRecord(f"a judgement on turn {turn_id} does not match its checksum")
            found.append(records.decode_judgement(body, prompt))
    return found


# ── feedback ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_feedback(connection: sqlite3.Connection, turn_id: str, feedback: Feedback) -> Feedback:
    """Store it; a turn that is free to be judged by it becomes ready."""
    seq = need_seq(connection, turn_id)
    at = feedback.created_at or time.time()
    body = records.encode_json({"kind": feedback.kind, "value": feedback.value, "text": feedback.text})
    crc = records.checksum((turn_id.encode(), records.pack_floats((at,)), body))
    [(number,)] = connection.execute(
        "INSERT INTO feedback (seq, created_at, body, crc) VALUES (?, ?, ?, ?) RETURNING feedback_id",
        (seq, at, body, crc),
    ).fetchall()
    state, kind, holder, verdicts = connection.execute(
        "SELECT state, kind, lease_owner, (SELECT COUNT(*) FROM verdicts WHERE seq = turns.seq) "
        "FROM turns WHERE seq = ?",
        (seq,),
    ).fetchone()
    gives_way = (
        state == TurnState.SERVED
        or (state == TurnState.JUDGED and holder is None)
        or (state == TurnState.EXCLUDED and verdicts)
    )
    if gives_way and TurnKind(kind).is_trainable:
        move(connection, seq, turn_id, TurnState.READY, "feedback")
    return replace(feedback, created_at=at, number=int(number))


def offer(connection: sqlite3.Connection, turn_id: str) -> bool:
    seq = need_seq(connection, turn_id)
    (kind,) = connection.execute("SELECT kind FROM turns WHERE seq = ?", (seq,)).fetchone()
    if state_of(connection, seq) is not TurnState.SERVED or not TurnKind(kind).is_trainable:
        return False
    move(connection, seq, turn_id, TurnState.READY, "compared with its siblings")
    return True


def reconsider(connection: sqlite3.Connection, turn_ids: Sequence[str], owner: str) -> tuple[str, ...]:
    """Let go of the judged turns whose verdict does not know of their newest feedback."""
    changed: list[str] = []
    for turn_id in turn_ids:
        seq = find_seq(connection, turn_id)
        if seq is None or state_of(connection, seq) is not TurnState.JUDGED:
            continue
        (holder,) = connection.execute("SELECT lease_owner FROM turns WHERE seq = ?", (seq,)).fetchone()
        if holder == owner and is_outdated(connection, seq):
            move(connection, seq, turn_id, TurnState.READY, "feedback")
            changed.append(turn_id)
    return tuple(changed)


def is_outdated(connection: sqlite3.Connection, seq: int) -> bool:
    """Whether there is feedback that the turn's verdict does not know of."""
    known = connection.execute("SELECT feedback_id FROM verdicts WHERE seq = ?", (seq,)).fetchone()
    return known is not None and _newest_feedback(connection, seq) > int(known[0])


def _newest_feedback(connection: sqlite3.Connection, seq: int) -> int:
    (newest,) = connection.execute("SELECT MAX(feedback_id) FROM feedback WHERE seq = ?", (seq,)).fetchone()
    return int(newest or 0)


def read_feedback(connection: sqlite3.Connection, turn_id: str) -> list[Feedback]:
    rows = connection.execute(
        "SELECT feedback_id, created_at, body, crc FROM feedback WHERE seq = ? ORDER BY feedback_id",
        (need_seq(connection, turn_id),),
    ).fetchall()
    found = []
    with damage_as_error(f"the feedback on turn {turn_id}"):
        for number, at, body, crc in rows:
            if records.checksum((turn_id.encode(), records.pack_floats((at,)), body)) != crc:
                raise CorruptRecord(f"a feedback on turn {turn_id} does not match its checksum")
            said = records.decode_json(body)
            found.append(Feedback(said["kind"], said["value"], said["text"], at, number))
    return found
