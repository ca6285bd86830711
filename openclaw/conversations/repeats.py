"""Requests that repeat an earlier one (retries) and requests that continue a reply a second time (branches)."""

from __future__ import annotations

from openclaw.conversations.ancestry import Anchor
from openclaw.conversations.known_turns import CONTINUATIONS, KnownTurn, KnownTurns, ReplyState
from openclaw.requests.identity import Identity
from openclaw.requests.reading import Reading

_RETRY_WINDOW_S = 900.0  # an equal request this long after a failure is a new one
_LOST_WITHIN_S = 60.0  # a library asks again within seconds of a connection that broke


def find_retried(
    reading: Reading, known: KnownTurns, identity: Identity, anchor: Anchor | None, now: float
) -> KnownTurn | None:
    """The turn whose request this one repeats because its reply failed, never arrived or was empty.

    An equal request is a retry of one that failed. Of one still in flight it is a retry when the client's library
    counts it as one, or when it comes from the very same session, which does not ask twice at once; else it is not,
    because parallel rollouts start with equal requests. Of one that was answered it is a new question, unless the
    library counts it as a retry and there is one answer only that it can have missed.
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
    """The one turn that was just answered, and went on nowhere: its reply was sent, and did not arrive."""
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
    """Whether a conversation already went on from this turn, with a reply that arrived.

    A request that holds the whole of that continuation's request and goes on after it is no rival: the client dropped
    or replaced the reply, and talks on.
    """
    return any(
        other.kind in CONTINUATIONS
        and other.state is ReplyState.DELIVERED
        and not reading.starts_with_request(other.request_key, other.num_kept)
        for other in known.continuations(turn)
    )


def _is_here(turn: KnownTurn, identity: Identity) -> bool:
    """Whether client names say that the turn belongs to the same session."""
    return identity.is_firm and turn.name == identity.name


def _is_elsewhere(turn: KnownTurn, identity: Identity) -> bool:
    """Whether client names say that the turn belongs to another session."""
    return turn.name is not None and identity.name is not None and turn.name != identity.name


def _is_rewritten(turn: KnownTurn, reading: Reading, identity: Identity) -> bool:
    """Whether a client wrapped the failed request's words in a note, or added one, to ask again.

    The wrapped words keep lines of their own, and the conversation its length; an added note is believed only within
    one trace, because a person who asks something else after a failure adds a message too.
    """
    if turn.num_kept == reading.num_kept:
        wrapped = f"\n{turn.user_text}\n"
        return bool(turn.user_text) and wrapped in f"\n{reading.last_user}\n"
    same_trace = turn.trace is not None and turn.trace == identity.trace
    return same_trace and reading.starts_with_request(turn.request_key, turn.num_kept)
