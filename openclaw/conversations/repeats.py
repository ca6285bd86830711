"""Detects retries (requests that repeat an earlier one) and branches (second continuations of a reply)."""

from __future__ import annotations

from openclaw.conversations.ancestry import Anchor
from openclaw.conversations.known_turns import CONTINUATIONS, KnownTurn, KnownTurns, ReplyState
from openclaw.requests.identity import Identity
from openclaw.requests.reading import Reading

_RETRY_WINDOW_S = 900.0  # an equal request later than this after a failure is a new one
_LOST_WITHIN_S = 60.0  # client libraries retry within seconds of a broken connection


def find_retried(
    reading: Reading, known: KnownTurns, identity: Identity, anchor: Anchor | None, now: float
) -> KnownTurn | None:
    """The turn whose request this one repeats because its reply failed, never arrived or was empty.

    An equal request retries a failed one. It retries one still in flight when the client library counts it as a retry
    or it comes from the same session, which sends one request at a time; otherwise it does not, because parallel
    rollouts start with equal requests. After an answered one it is a new question, unless the library counts it as a
    retry and exactly one answer can have been lost.
    """
    parent_id = anchor.turn.turn_id if anchor is not None else None
    for turn in known.unanswered(reading.request_key):
        if turn.retried_by is not None or turn.shape != reading.shape or turn.parent_id != parent_id:
            continue
        if _is_elsewhere(turn, identity):
            continue
        if turn.state is ReplyState.FAILED and now - turn.ended_at <= _RETRY_WINDOW_S:
            return turn
        if turn.state is ReplyState.IN_FLIGHT and (identity.retry_count > 0 or _is_here(turn, identity)):
            return turn
    if identity.retry_count > 0 and (lost := _lost_on_its_way(reading, known, identity, parent_id, now)) is not None:
        return lost
    for turn in known.failed():
        if now - turn.ended_at > _RETRY_WINDOW_S:
            break
        if turn.parent_id == parent_id and not _is_elsewhere(turn, identity) and _is_rewritten(turn, reading, identity):
            return turn
    return None


def _lost_on_its_way(
    reading: Reading, known: KnownTurns, identity: Identity, parent_id: str | None, now: float
) -> KnownTurn | None:
    """The only just-answered turn without a continuation: its reply was sent but did not arrive."""
    missed = [
        turn
        for turn in known.by_request(reading.request_key)
        if turn.state is ReplyState.DELIVERED
        and now - turn.ended_at <= _LOST_WITHIN_S
        and turn.shape == reading.shape
        and turn.parent_id == parent_id
        and turn.retried_by is None
        and not _is_elsewhere(turn, identity)
    ]
    return missed[0] if len(missed) == 1 and known.is_open(missed[0]) else None


def is_continued(turn: KnownTurn, reading: Reading, known: KnownTurns) -> bool:
    """Whether a delivered turn already continues this one.

    A request that starts with that continuation's whole request does not count as a branch: the client dropped or
    replaced the reply and continued.
    """
    return any(
        other.kind in CONTINUATIONS
        and other.state is ReplyState.DELIVERED
        and not reading.starts_with_request(other.request_key, other.num_kept)
        for other in known.continuations(turn)
    )


def _is_here(turn: KnownTurn, identity: Identity) -> bool:
    """Whether the client's names put the turn in the same session."""
    return identity.is_firm and turn.name == identity.name


def _is_elsewhere(turn: KnownTurn, identity: Identity) -> bool:
    """Whether the client's names put the turn in another session."""
    return turn.name is not None and identity.name is not None and turn.name != identity.name


def _is_rewritten(turn: KnownTurn, reading: Reading, identity: Identity) -> bool:
    """Whether a client retried the failed request with its words wrapped in a note, or with a note appended.

    Wrapped words keep lines of their own, and the conversation its length; an appended note counts only within one
    trace, because a person who asks something else after a failure also appends a message.
    """
    if turn.num_kept == reading.num_kept:
        wrapped = f"\n{turn.user_text}\n"
        return bool(turn.user_text) and wrapped in f"\n{reading.last_user}\n"
    same_trace = turn.trace is not None and turn.trace == identity.trace
    return same_trace and reading.starts_with_request(turn.request_key, turn.num_kept)
