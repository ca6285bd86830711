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

import time
from collections.abc import Sequence
from dataclasses import replace

from slime.errors import LeaseLost
from slime.store import records
from slime.store.connection import Connection
from slime.store.reads import TurnReader, read_about
from slime.store.states import check_move
from slime.store.writes import move, put_contents
from slime.types import Feedback, Judgement, TurnState, Verdict

UNJUDGED = "unjudged"
"""How the reason of an exclusion for want of a verdict begins."""

SCORE_ZERO = "score 0"

# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def record_verdict(
    connection: Connection, turn_id: str, verdict: Verdict, owner: str, *, feedback: Feedback | None = None
) -> bool:
    """CLAIMED → JUDGED, still leased; a verdict that says nothing → EXCLUDED with the reason.

    Its judgements are kept beside it, for ever and over later verdicts.

    Args:
        feedback: the newest that the verdict takes into account.

    Returns:
        False, with no verdict stored, if the turn has newer feedback: it is to be judged again.

    Raises:
        LeaseLost: another collector holds the turn now; its verdict counts.
    """
    turn = connection.need(turn_id)
    body = records.encode_json(records.verdict_fields(verdict))
    if turn.state != TurnState.CLAIMED:
        if connection.one("SELECT body FROM verdicts WHERE seq = ?", (turn.seq,)) == (body,):
            return True  # the same call again: its first answer was lost
        if turn.state == TurnState.READY:
            raise LeaseLost(f"the lease of {owner} on turn {turn_id} ran out before its verdict came")
        check_move(turn_id, TurnState(turn.state), TurnState.JUDGED)
    if turn.lease_owner != owner:
        raise LeaseLost(f"turn {turn_id} is held by {turn.lease_owner}, not by {owner}")
    record_judgements(connection, turn_id, verdict.as_judgements())
    known = 0 if feedback is None else feedback.number
    if _newest_feedback(connection, turn.seq) > known:
        return False
    _put_verdict(connection, turn.seq, body, known)
    if verdict.is_effective:
        move(connection, turn, TurnState.JUDGED, owner)
    else:
        move(connection, turn, TurnState.EXCLUDED, _why_excluded(verdict))
    return True


def revise_verdict(connection: Connection, turn_id: str, verdict: Verdict) -> bool:
    """Put another judge's verdict in place of the first one's, or of none; its judgements are kept in any case.

    Returns:
        False, and the turn stays as it is, if it is trained, held by a collector, excluded for another reason than
        its verdict, not to be trained at all, or judged by a person.
    """
    turn = connection.need(turn_id)
    record_judgements(connection, turn_id, verdict.as_judgements())
    is_free = turn.state == TurnState.READY or (turn.state == TurnState.JUDGED and turn.lease_owner is None)
    why = turn.reason
    gave_way = turn.state == TurnState.EXCLUDED and (why == SCORE_ZERO or why.startswith(UNJUDGED))
    if not ((is_free or gave_way) and turn.is_trainable) or _newest_feedback(connection, turn.seq):
        return False
    _put_verdict(connection, turn.seq, records.encode_json(records.verdict_fields(verdict)), 0)
    if gave_way:
        turn = move(connection, turn, TurnState.READY, "judged again")
    if not verdict.is_effective:
        move(connection, turn, TurnState.EXCLUDED, _why_excluded(verdict))
    elif turn.state == TurnState.READY:
        turn = move(connection, turn, TurnState.CLAIMED, "judged again")
        move(connection, turn, TurnState.JUDGED, "judged again")
    return True


def read_exclusions(connection: Connection, limit: int = 5) -> dict[str, int]:
    """How many turns are excluded for which reason, the commonest first: `{"unjudged": 12, "score 0": 3}`.

    What a judge says of a turn that it leaves unjudged may quote a person: it is no part of the reason.
    """
    rows = connection.execute(
        "SELECT CASE WHEN reason LIKE :unjudged || '%' THEN :unjudged ELSE reason END AS why, COUNT(*) AS number "
        "FROM turns WHERE state = :excluded GROUP BY why ORDER BY number DESC, why LIMIT :limit",
        {"unjudged": UNJUDGED, "excluded": TurnState.EXCLUDED, "limit": limit},
    )
    return dict(rows.fetchall())


def _put_verdict(connection: Connection, seq: int, body: bytes, feedback_id: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO verdicts (seq, judged_at, body, crc, feedback_id) VALUES (?, ?, ?, ?, ?)",
        (seq, time.time(), body, records.checksum((body,)), feedback_id),
    )


def _why_excluded(verdict: Verdict) -> str:
    return SCORE_ZERO if verdict.is_judged else f"{UNJUDGED}: {verdict.reason or 'no reason given'}"


# ── judgements ───────────────────────────────────────────────────────────────────────────────────────────────────────


def record_judgements(connection: Connection, turn_id: str, judgements: Sequence[Judgement]) -> None:
    """Keep what judges said of a turn, without making a verdict of it.

    The votes on a turn are mostly shown the same prompt: it is stored once, as a content.
    """
    seq = connection.need(turn_id).seq
    for judgement in judgements:
        if not judgement.created_at:
            judgement = replace(judgement, created_at=time.time())
        [prompt_id], [prompt_hash] = put_contents(connection, [list(judgement.prompt)])
        body = records.encode_judgement(judgement)
        connection.execute(
            "INSERT INTO judgements (seq, prompt_id, body, crc) VALUES (?, ?, ?, ?)",
            (seq, prompt_id, body, records.checksum((prompt_hash, body))),
        )


def read_judgements(connection: Connection, turn_id: str) -> list[Judgement]:
    """Everything any judge ever said of a turn, oldest first."""
    reader = TurnReader(connection)

    def decode(prompt_id: int, body: bytes, crc: int) -> Judgement:
        [prompt_hash], [prompt] = reader.contents((prompt_id,))
        records.verify(crc, (prompt_hash, body))
        return records.decode_judgement(body, prompt)

    query = "SELECT prompt_id, body, crc FROM judgements WHERE seq = ? ORDER BY judgement_id"
    return read_about(connection, turn_id, "a judgement on", query, decode)


# ── feedback ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def add_feedback(connection: Connection, turn_id: str, feedback: Feedback) -> Feedback:
    """Store what a person said of a turn, and have it judged by that; returns it with its number and time.

    SERVED → READY, without a next state; a verdict that stands and is in no collector's hands, or made the turn
    EXCLUDED, gives way: → READY. A collector notices what it holds itself; what is TRAINED stays as it is.
    """
    turn = connection.need(turn_id)
    at = feedback.created_at or time.time()
    body = records.encode_json({"kind": feedback.kind, "value": feedback.value, "text": feedback.text})
    [number] = connection.column(
        "INSERT INTO feedback (seq, created_at, body, crc) VALUES (?, ?, ?, ?) RETURNING feedback_id",
        (turn.seq, at, body, records.checksum(_feedback_parts(turn_id, at, body))),
    )
    gives_way = (
        turn.state == TurnState.SERVED
        or (turn.state == TurnState.JUDGED and turn.lease_owner is None)
        or (turn.state == TurnState.EXCLUDED and connection.one("SELECT 1 FROM verdicts WHERE seq = ?", (turn.seq,)))
    )
    if gives_way and turn.is_trainable:
        move(connection, turn, TurnState.READY, "feedback")
    return replace(feedback, created_at=at, number=number)


def offer(connection: Connection, turn_id: str) -> bool:
    """SERVED → READY without a next state: there is another way to judge it. False if it is not SERVED."""
    turn = connection.need(turn_id)
    if turn.state != TurnState.SERVED or not turn.is_trainable:
        return False
    move(connection, turn, TurnState.READY, "compared with its siblings")
    return True


def reconsider(connection: Connection, turn_ids: Sequence[str], owner: str) -> tuple[str, ...]:
    """Which of these judged turns got feedback after their verdict: they are READY again, and not leased."""
    changed: list[str] = []
    for turn in filter(None, map(connection.find, turn_ids)):
        if turn.state == TurnState.JUDGED and turn.lease_owner == owner and is_outdated(connection, turn.seq):
            move(connection, turn, TurnState.READY, "feedback")
            changed.append(turn.turn_id)
    return tuple(changed)


def is_outdated(connection: Connection, seq: int) -> bool:
    """Whether there is feedback that the turn's verdict does not know of."""
    known = connection.one("SELECT feedback_id FROM verdicts WHERE seq = ?", (seq,))
    return known is not None and _newest_feedback(connection, seq) > known[0]


def _newest_feedback(connection: Connection, seq: int) -> int:
    (newest,) = connection.one("SELECT MAX(feedback_id) FROM feedback WHERE seq = ?", (seq,))
    return newest or 0


def _feedback_parts(turn_id: str, at: float, body: bytes) -> tuple[bytes, ...]:
    return turn_id.encode(), records.pack_floats((at,)), body


def read_feedback(connection: Connection, turn_id: str) -> list[Feedback]:
    """Everything a person said of a turn outside the conversation, oldest first; the last one counts."""

    def decode(number: int, at: float, body: bytes, crc: int) -> Feedback:
        records.verify(crc, _feedback_parts(turn_id, at, body))
        return Feedback(**records.decode_json(body), created_at=at, number=number)

    query = "SELECT feedback_id, created_at, body, crc FROM feedback WHERE seq = ? ORDER BY feedback_id"
    return read_about(connection, turn_id, "a feedback on", query, decode)
