"""Links a request to a session by content, when neither the client's name nor a reply of ours identifies it.

A request for a title, a commit message or a summary is *about* a conversation, whose text one message contains. A
conversation whose replies are unknown continued on another server. An application that starts over right after its
stream broke stays in the same session.
"""

from __future__ import annotations

from slime.types import TurnKind

from openclaw.conversations.known_turns import KnownTurn, KnownTurns, ReplyState, SessionState
from openclaw.requests.plain_text import collapse
from openclaw.requests.reading import Reading

_LABEL_WAIT_S = 60.0  # a title may come this long before the first request of its conversation
_LABEL_LATE_S = 2.0  # or this long after it
_RESTART_S = 1.0  # an application restarts a broken stream within this time; a person takes longer
_HEAD = 200  # characters of a text that are searched for in another
_SHORT = 8  # a shorter text counts only when delimited
_DELEGATED_S, _DELEGATED_MIN = 120.0, 40


def session_spoken_of(reading: Reading, kind: TurnKind, known: KnownTurns, now: float) -> SessionState | None:
    """The session that a side request or a compaction is about; None when it is not there (yet)."""
    text = reading.all_user_text
    said: dict[str, list[bool]] = {}  # by session, newest first: whether the text contains each turn's reply
    asked: dict[str, set[str]] = {}  # the user messages that it contains
    for turn in known.recent():
        if turn.kind is TurnKind.SIDE or turn.asks_summary:
            continue
        said.setdefault(turn.session_id, []).append(_stands_in(turn.reply_text, text))
        opening = _opening(turn.user_text)
        asked.setdefault(turn.session_id, set()).update({opening} if _stands_in(opening, text) else ())

    def agreement(session_id: str) -> tuple[int, float]:
        """User messages found, which rarely coincide, then the share of replies found."""
        is_begun = _stands_in(_opening(known.sessions[session_id].root_text), text)
        return len(asked[session_id]) + is_begun, sum(said[session_id]) / len(said[session_id])

    is_about_replies = kind is TurnKind.SIDE or any(map(any, said.values()))
    sessions = [session_id for session_id in said if (any(said[session_id]) if is_about_replies else asked[session_id])]
    if sessions:
        return known.sessions[max(sessions, key=agreement)]  # the newest of equals
    return _just_begun(text, known, now)


def _just_begun(text: str, known: KnownTurns, now: float) -> SessionState | None:
    """A conversation that just began with words that the label's request contains."""
    for turn in known.recent():
        if now - turn.arrived_at > _LABEL_LATE_S:
            return None
        session = known.sessions[turn.session_id]
        is_root = turn.kind is TurnKind.MAIN and turn.parent_id is None
        if is_root and not session.has_label and _stands_in(turn.root_text, text):
            return session
    return None


def session_labelled_before(reading: Reading, known: KnownTurns, now: float) -> SessionState | None:
    """The session that a title request opened for the conversation that begins with this request."""
    for label, text in reversed(known.waiting_labels):
        if now - label.arrived_at > _LABEL_WAIT_S:
            return None
        session = known.sessions.get(label.session_id)
        if session is not None and not session.root_key and _stands_in(reading.first_user, text):
            return session
    return None


def session_started_over(reading: Reading, known: KnownTurns, now: float) -> SessionState | None:
    """The session whose stream just broke and whose first request this one repeats."""
    session = session_with_root(reading, known)
    newest = known.turns.get(session.newest) if session is not None else None
    if newest is None or newest.state is not ReplyState.FAILED or newest.retried_by is not None:
        return None
    return session if now - newest.ended_at <= _RESTART_S else None


def session_with_root(reading: Reading, known: KnownTurns) -> SessionState | None:
    """The newest session of the same agent with the same first messages."""
    session_id = known.newest_session_from.get((reading.root_key, reading.shape))
    return known.sessions.get(session_id) if session_id is not None else None


def delegating_turn(reading: Reading, known: KnownTurns, now: float) -> KnownTurn | None:
    """The turn whose complete reply is passed on as a user message (a planner to an editor)."""
    text = collapse(reading.last_user)
    if len(text) < _DELEGATED_MIN:
        return None
    for turn in known.recent():
        if now - turn.arrived_at > _DELEGATED_S:
            return None
        reply = turn.reply_text
        if len(reply) >= _DELEGATED_MIN and text.startswith(reply[:_SHORT]) and text.startswith(collapse(reply)):
            return turn
    return None


def _opening(words: str) -> str:
    """The first line of a message unless it is too short: clients append their additions below it."""
    line = words.split("\n", 1)[0]
    return line if len(line) >= _SHORT else words


def _stands_in(words: str, text: str) -> bool:
    """Whether a collapsed text contains a user's words, or their head; short words must be delimited."""
    head = collapse(words[:_HEAD])
    if not head or head not in text:
        return False
    if len(head) < _SHORT:
        return head == text.strip("\"' ") or f'"{head}"' in text or f"> {head} <" in text or f": {head} " in text
    return True
