"""The in-memory cache of one credential's turns, with an index for every way to find one.

A `KnownTurn` holds keys and short texts of a turn whose messages are in the store. `KnownTurns` holds the turns of one
credential; each credential has its own, so no turn can match a parent of another.

    tool-call id ─┐
    reply text   ─┤
    request key  ─┼─▶ KnownTurn ─▶ SessionState
    summary text ─┤
    recency      ─┘
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slime.types import TurnKind

from openclaw.conversations.postings import Postings

MAX_RECENT = 128
"""Turns and summaries that are searched when a request names no turn."""
MAX_LABELS = 32
"""Titles still without their conversation; each keeps the beginning and the end of its request."""

CONTINUATIONS = (TurnKind.MAIN, TurnKind.BRANCH, TurnKind.RETRY)
"""The kinds of turn that continue a conversation."""


class ReplyState(enum.Enum):
    """The delivery state of a turn's reply."""

    IN_FLIGHT = "in flight"
    DELIVERED = "delivered"
    FAILED = "failed"  # an error, a broken stream, a disconnect, or an empty reply


@dataclass(slots=True)
class KnownTurn:
    """The fields of a turn that matching needs.

    Attributes:
        request_key: key of the conversation sent; equal for equal conversations.
        root_key: key of its messages before the first assistant message.
        shape: model, head of the system prompt and number of tools, hashed.
        user_text, root_text: its newest and its first user message, normalized by `Reading`.
        num_kept: messages of the conversation without the client's ephemeral ones.
        call_ids, reply_text, reply_keys: of the reply, once there is one.
        asks_summary: its request asks for a summary of a conversation, whatever its declared kind.
        summary: the reply to such a request, as clients carry it over.
        arrived_at, ended_at: seconds on the index's clock.
        last_activity: when it, or an attempt to continue it, ended.
        retried_by: the turn that repeated this one's request.
    """

    turn_id: str
    session_id: str
    parent_id: str | None
    kind: TurnKind
    request_key: bytes
    root_key: bytes
    shape: int
    user_text: str
    root_text: str
    num_kept: int
    asks_summary: bool
    arrived_at: float
    name: str | None = None
    trace: str | None = None
    connection: str | None = None
    state: ReplyState = ReplyState.IN_FLIGHT
    ended_at: float = 0.0
    call_ids: tuple[str, ...] = ()
    reply_text: str = ""
    reply_keys: tuple[bytes, ...] = ()
    summary: str = ""
    last_activity: float = 0.0
    retried_by: str | None = None

    @property
    def num_chars(self) -> int:
        """Characters of text held in memory."""
        texts = (self.user_text, self.root_text, self.reply_text, self.summary, self.name or "")
        return sum(map(len, texts))


@dataclass(slots=True)
class SessionState:
    """The fields of a session that matching needs.

    Attributes:
        base: the client's name for it, without the number of a later conversation; None when matched by content.
        num_alive: main turns in flight or delivered; if any, a fresh start under a loose name is a new conversation.
        has_label: a title or similar was generated for it.
        root_key, shape, root_text: of its first request; empty while it has only side requests.
        newest, newest_at: its newest turn and that turn's arrival.
        newest_reply: the turn of its newest delivered reply; empty when there is none.
    """

    session_id: str
    base: str | None
    root_key: bytes
    shape: int
    root_text: str = ""
    num_turns: int = 0
    num_alive: int = 0
    has_label: bool = False
    newest: str = ""
    newest_at: float = float("-inf")
    newest_reply: str = ""


class KnownTurns:
    """All known turns of one credential."""

    def __init__(self) -> None:
        self.turns: OrderedDict[str, KnownTurn] = OrderedDict()  # least recently used first
        self.sessions: dict[str, SessionState] = {}
        self.newest_session_of: dict[str, str] = {}  # by the name a client gave
        self.newest_session_from: dict[tuple[bytes, int], str] = {}  # by root key and shape
        self.waiting_labels: deque[tuple[KnownTurn, str]] = deque(maxlen=MAX_LABELS)
        self._by_call_id: dict[str, str] = {}
        self._by_reply: Postings[bytes] = Postings()
        self._by_request: Postings[bytes] = Postings()
        self._unanswered: Postings[bytes] = Postings()  # by request key
        self._continued_by: Postings[str] = Postings()  # also for parents not (or no longer) cached
        self._recent: deque[str] = deque(maxlen=MAX_RECENT)
        self._recent_since = float("-inf")
        self._failed: deque[str] = deque(maxlen=MAX_RECENT)
        self._summaries: deque[str] = deque(maxlen=MAX_RECENT)

    def begin(self, turn: KnownTurn, session: SessionState) -> None:
        """Add a turn: a new one, or an older one restored from the store."""
        self.turns[turn.turn_id] = turn
        self._by_request.add(turn.request_key, turn.turn_id)
        self._unanswered.add(turn.request_key, turn.turn_id)
        if turn.arrived_at >= self._recent_since:
            self._recent_since = turn.arrived_at
            self._recent.append(turn.turn_id)
        session.num_turns += 1
        session.num_alive += turn.kind in CONTINUATIONS
        self.sessions[session.session_id] = session
        if turn.arrived_at >= session.newest_at:
            session.newest, session.newest_at = turn.turn_id, turn.arrived_at
        if session.base is not None and self._is_newest(session, self.newest_session_of.get(session.base)):
            self.newest_session_of[session.base] = session.session_id
        if session.root_key:
            root = (session.root_key, session.shape)
            if self._is_newest(session, self.newest_session_from.get(root)):
                self.newest_session_from[root] = session.session_id
        if turn.parent_id is not None:
            self._continued_by.add(turn.parent_id, turn.turn_id)
            if turn.parent_id in self.turns:
                self.turns.move_to_end(turn.parent_id)

    def _is_newest(self, session: SessionState, other_id: str | None) -> bool:
        other = self.sessions.get(other_id or "")
        return other is None or session.newest_at >= other.newest_at

    def add_reply(self, turn: KnownTurn) -> None:
        """Index a turn by its reply: `call_ids`, `reply_keys` and `summary` must be set."""
        turn.last_activity = max(turn.last_activity, turn.ended_at)
        for call_id in turn.call_ids:
            self._by_call_id[call_id] = turn.turn_id
        for key in turn.reply_keys:
            self._by_reply.add(key, turn.turn_id)
        if turn.summary:
            self._summaries.append(turn.turn_id)

    def add_delivery(self, turn: KnownTurn) -> None:
        """Mark a turn's reply as delivered."""
        turn.state = ReplyState.DELIVERED
        self._unanswered.discard(turn.request_key, turn.turn_id)
        session = self.sessions[turn.session_id]
        newest = self.turns.get(session.newest_reply)
        if turn.kind in CONTINUATIONS and (newest is None or newest.arrived_at <= turn.arrived_at):
            session.newest_reply = turn.turn_id

    def add_failure(self, turn: KnownTurn) -> None:
        """Mark a turn as failed: in flight, or after sending when the client's retry shows that it did not arrive."""
        turn.state = ReplyState.FAILED
        self._unanswered.add(turn.request_key, turn.turn_id)
        self._failed.append(turn.turn_id)
        self._unlink(turn)
        parent = self.turns.get(turn.parent_id or "")
        if parent is not None:
            parent.last_activity = max(parent.last_activity, turn.ended_at)
        self.sessions[turn.session_id].num_alive -= turn.kind in CONTINUATIONS

    def forget(self, turn_id: str) -> KnownTurn:
        turn = self.turns.pop(turn_id)
        for call_id in turn.call_ids:
            if self._by_call_id.get(call_id) == turn_id:
                del self._by_call_id[call_id]
        for key in turn.reply_keys:
            self._by_reply.discard(key, turn_id)
        self._by_request.discard(turn.request_key, turn_id)
        self._unanswered.discard(turn.request_key, turn_id)
        self._unlink(turn)
        session = self.sessions[turn.session_id]
        session.num_turns -= 1
        if not session.num_turns:
            del self.sessions[turn.session_id]
            if session.base is not None and self.newest_session_of.get(session.base) == turn.session_id:
                del self.newest_session_of[session.base]
            root = (session.root_key, session.shape)
            if self.newest_session_from.get(root) == turn.session_id:
                del self.newest_session_from[root]
        return turn

    def by_call_id(self, call_id: str) -> KnownTurn | None:
        turn_id = self._by_call_id.get(call_id)
        return self.turns[turn_id] if turn_id is not None else None

    def parent_of(self, turn_id: str | None) -> str | None:
        turn = self.turns.get(turn_id) if turn_id is not None else None
        return turn.parent_id if turn is not None else None

    def continuations(self, turn: KnownTurn) -> Iterator[KnownTurn]:
        """Turns that continue this one and have not failed."""
        return self._known(self._continued_by.newest(turn.turn_id))

    def is_open(self, turn: KnownTurn) -> bool:
        """Whether no turn continues this one, failed attempts aside."""
        return turn.turn_id not in self._continued_by

    def by_reply(self, key: bytes) -> Iterator[KnownTurn]:
        """The newest turns whose reply has this key, newest first."""
        return self._known(self._by_reply.newest(key))

    def by_request(self, key: bytes) -> Iterator[KnownTurn]:
        """The newest turns whose request has this key, newest first."""
        return self._known(self._by_request.newest(key))

    def unanswered(self, key: bytes) -> Iterator[KnownTurn]:
        """As `by_request`, only turns whose reply is in flight or failed."""
        return self._known(self._unanswered.newest(key))

    def recent(self) -> Iterator[KnownTurn]:
        """The newest turns, newest first."""
        return self._known(reversed(self._recent))

    def failed(self) -> Iterator[KnownTurn]:
        """Recently failed turns without a retry, newest first."""
        return (turn for turn in self._known(reversed(self._failed)) if turn.retried_by is None)

    @property
    def has_summaries(self) -> bool:
        return bool(self._summaries)

    def summaries(self) -> Iterator[KnownTurn]:
        """Recent compactions, newest first."""
        return self._known(reversed(self._summaries))

    def _unlink(self, turn: KnownTurn) -> None:
        if turn.parent_id is not None:
            self._continued_by.discard(turn.parent_id, turn.turn_id)

    def _known(self, turn_ids: Iterable[str]) -> Iterator[KnownTurn]:
        return (self.turns[turn_id] for turn_id in turn_ids if turn_id in self.turns)
