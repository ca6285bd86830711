"""Where each request stands: its session, its parent turn, its kind, and what it says about the parent's reply.

    IncomingRequest ─ begin ─▶ Placement ─ engine ─▶ finish(reply) | fail
                         │
                         ├─ identity     who the client says it is         (a hint for the session)
                         ├─ ancestry     the last reply of ours in it      (the parent)
                         ├─ kinds        main, side or compaction          (its shape, then its words)
                         └─ known turns  equal requests, continuations     (retry, branch)

One `ConversationIndex` serves one event loop and does no I/O. It keeps keys and short texts of the newest turns;
everything else is in the store, and `restore` puts a stored turn back, after a restart or when an old conversation goes
on. Turns of different credentials never meet.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from slime.types import Message, Turn, TurnKind, TurnState

from openclaw import linking
from openclaw.ancestry import Anchor, AnchorSearch
from openclaw.api_errors import bad_request
from openclaw.dialects import alphanumeric, read_request, text_of, with_text
from openclaw.identity import identify
from openclaw.kinds import is_summary_order, kind_of
from openclaw.known_turns import CONTINUATIONS, KnownTurn, KnownTurns, ReplyState, SessionState
from openclaw.plain_text import is_ephemeral, is_poll, plain_user_text, summary_core, text_lines
from openclaw.reading import KEPT_TEXT, Reading, backward_keys, calls_key, whole_key
from openclaw.repeats import find_retried, is_continued
from openclaw.sessions import Request, SessionChooser
from openclaw.turn_ids import new_turn_id, turn_of

CAPTURE = "capture"  # the key of `Turn.details` under which `restore` finds what it needs


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as it reached the server.

    Attributes:
        endpoint: its path, e.g. `/v1/chat/completions`.
        headers: names in lower case.
        credential: the API key as it was sent; only a hash of it is kept.
        arrived_at: seconds since 1970.
        connection: whatever names the client's connection or client object; breaks ties only.
    """

    endpoint: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    credential: str = ""
    arrived_at: float = 0.0
    connection: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request stands.

    >>> Placement(turn_id="t0…2", session_id="s0…1", parent_id="t0…1", kind=TurnKind.MAIN, source="content",
    ...           next_state=({"role": "user", "content": "Shorter, please."},))

    Attributes:
        turn_id: minted for the turn that this request begins.
        parent_id: the turn whose reply is the last of ours in the request; it may lie in another session (a fork).
        retry_of: the turn whose request this one repeats.
        next_state: the chat messages after the parent's reply less the client's ephemeral ones; None when there is no
            parent, nothing after it, or nothing that a person or a tool said (side requests).
        source: how the session was found: `header`, `body`, `user` or `content`.
        is_done: the client says that the session ends with this request.
        details: to be stored as `Turn.details`, so that `restore` can put the turn back.
    """

    turn_id: str
    session_id: str
    parent_id: str | None
    kind: TurnKind
    source: str
    next_state: tuple[Message, ...] | None = None
    retry_of: str | None = None
    is_done: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


class ConversationIndex:
    """Places requests among the turns it knows. Single-threaded; every call takes microseconds.

    Args:
        max_turns: turns remembered, over all credentials; the least recently used are forgotten first.
    """

    def __init__(self, max_turns: int = 50_000) -> None:
        self._max_turns = max_turns
        self._known: dict[str, KnownTurns] = {}  # by hash of the credential
        self._order: OrderedDict[str, str] = OrderedDict()  # turn id -> hash of its credential, least recent first
        self._sessions = SessionChooser()

    @property
    def num_turns(self) -> int:
        """How many turns are remembered."""
        return len(self._order)

    # ── the life of a turn ───────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, request: IncomingRequest) -> Placement:
        """Place a request and remember it as in flight.

        Raises:
            ValueError: the client names a turn type that does not exist.
        """
        credential = hash_credential(request.credential)
        known = self._known.setdefault(credential, KnownTurns())
        reading = Reading(request.endpoint, request.body)
        identity = identify(request.headers, request.body, reading.raw_first_user)
        now = request.arrived_at or time.time()

        anchor = AnchorSearch(reading, known, identity, request.connection).find()
        retried = find_retried(reading, known, identity, anchor, now)
        seen = kind_of(reading.request, has_our_replies=anchor is not None)
        kind = _kind(identity.kind or seen, reading, known, anchor, retried)
        parent = _parent(reading, known, anchor, retried, kind, now)
        session = self._sessions.choose(Request(reading, identity, parent, retried, kind, now), known, credential)

        turn = KnownTurn(
            turn_id=new_turn_id(now),
            session_id=session.session_id,
            parent_id=parent.turn_id if parent is not None else None,
            kind=kind,
            request_key=reading.request_key,
            root_key=reading.root_key,
            shape=reading.shape,
            user_text=reading.last_user,
            root_text=reading.first_user,
            num_kept=reading.num_kept,
            asks_summary=seen is TurnKind.COMPACTION,
            arrived_at=now,
            name=identity.name,
            trace=identity.trace,
            connection=request.connection,
        )
        self._remember(turn, session, known, credential)
        if retried is not None:
            retried.retried_by = turn.turn_id
        if kind is TurnKind.SIDE:
            session.has_label = True
            if identity.name is None and not session.root_key:
                known.waiting_labels.append((turn, reading.all_user_text))
        return Placement(
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            parent_id=turn.parent_id,
            kind=kind,
            source=identity.source,
            next_state=_next_state(reading, anchor, kind),
            retry_of=retried.turn_id if retried is not None else None,
            is_done=identity.is_done,
            details={CAPTURE: _details(turn, session, credential)},
        )

    def finish(
        self, placement: Placement, reply: Message, *, delivered: bool = True, ended_at: float = 0.0, reply_id: str = ""
    ) -> None:
        """Remember the reply as far as it was sent: even a broken one may come back in a later request.

        Args:
            reply: the assistant message, with the tool-call ids that the client got.
            delivered: it was sent to its end and the connection was open until then.
            reply_id: the id that a later request may name it by, where that does not encode the turn already.
        """
        turn, known = self._find(placement.turn_id)
        if turn is None or known is None:  # forgotten while it was in flight
            return
        _take_reply(turn, reply, reply_id)
        turn.ended_at = ended_at or time.time()
        known.add_reply(turn)
        if delivered and (turn.call_ids or turn.reply_text):
            turn.state = ReplyState.DELIVERED
        else:
            known.add_failure(turn)

    def fail(self, placement: Placement, *, ended_at: float = 0.0) -> None:
        """Nothing of a reply reached the client: an error, a closed connection."""
        turn, known = self._find(placement.turn_id)
        if turn is not None and known is not None:
            turn.ended_at = ended_at or time.time()
            known.add_failure(turn)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, turns: Iterable[Turn]) -> None:
        """Put stored turns back; those known already, or stored without capture, are passed over."""
        for stored in sorted(turns, key=lambda turn: turn.created_at):
            kept = stored.details.get(CAPTURE)
            if kept is None or stored.turn_id in self._order:
                continue
            credential = str(kept["credential"])
            known = self._known.setdefault(credential, KnownTurns())
            turn = _restored(stored, kept)
            session = known.sessions.get(stored.session_id) or SessionState(
                stored.session_id, kept["base"], b"", turn.shape
            )
            self._remember(turn, session, known, credential)
            _take_reply(turn, stored.reply, "")
            known.add_reply(turn)
            if stored.state is TurnState.ABORTED:
                known.add_failure(turn)
            if stored.retry_of in known.turns:
                known.turns[stored.retry_of].retried_by = turn.turn_id

    def missing_turns(self, request: IncomingRequest) -> tuple[str, ...]:
        """Turns that the request's tool-call ids name and that are not remembered: to be restored before `begin`."""
        messages = read_request(request.endpoint, request.body).messages
        named = (turn_of(call_id) for message in messages for call_id in message.call_ids)
        return tuple(dict.fromkeys(turn_id for turn_id in named if turn_id and turn_id not in self._order))

    def newest_reply(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
        """The turn of the last delivered reply in the newest session of the name that headers and body give.

        Raises:
            ApiError: they give no name, or sessions of several API keys have it.
        """
        name = identify(headers, body, "").name
        if name is None:
            raise bad_request("name the turn with turn_id, or its session by header, session_id or user", "turn_id")
        holders = [known for known in self._known.values() if name in known.newest_session_of]
        if len(holders) > 1:
            raise bad_request("sessions of several API keys have this name: name the turn with turn_id", "turn_id")
        for known in holders:
            session_id = known.newest_session_of[name]
            for turn in reversed(known.turns.values()):
                if turn.session_id == session_id and turn.kind in CONTINUATIONS and turn.state is ReplyState.DELIVERED:
                    return turn.turn_id
        return None

    def _remember(self, turn: KnownTurn, session: SessionState, known: KnownTurns, credential: str) -> None:
        if not session.root_key and turn.kind in CONTINUATIONS:
            session.root_key, session.shape, session.root_text = turn.root_key, turn.shape, turn.root_text
        known.begin(turn, session)
        self._sessions.claim(session.session_id, credential)
        self._order[turn.turn_id] = credential
        if turn.parent_id is not None and turn.parent_id in self._order:
            self._order.move_to_end(turn.parent_id)
        while len(self._order) > self._max_turns:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        turn_id, credential = self._order.popitem(last=False)
        known = self._known[credential]
        session_id = known.turns[turn_id].session_id
        known.forget(turn_id)
        if session_id not in known.sessions:
            self._sessions.release(session_id)
        if not known.turns:
            del self._known[credential]

    def _find(self, turn_id: str) -> tuple[KnownTurn | None, KnownTurns | None]:
        credential = self._order.get(turn_id)
        if credential is None:
            return None, None
        known = self._known[credential]
        return known.turns[turn_id], known


def hash_credential(credential: str) -> str:
    """What is kept of a credential: enough to tell two apart, nothing to log in with."""
    return blake2b(credential.encode("utf-8", "surrogatepass"), digest_size=16, person=b"openclaw-capture").hexdigest()


def _kind(
    kind: TurnKind, reading: Reading, known: KnownTurns, anchor: Anchor | None, retried: KnownTurn | None
) -> TurnKind:
    """A main turn may be a retry or a branch, whatever the client calls it: that is ours to see."""
    if kind is not TurnKind.MAIN:
        return kind
    if retried is not None:
        return TurnKind.RETRY
    return TurnKind.BRANCH if anchor is not None and is_continued(anchor.turn, reading, known) else kind


def _parent(
    reading: Reading,
    known: KnownTurns,
    anchor: Anchor | None,
    retried: KnownTurn | None,
    kind: TurnKind,
    now: float,
) -> KnownTurn | None:
    if anchor is not None:
        return anchor.turn
    if retried is not None:
        return known.turns.get(retried.parent_id or "")
    if kind is TurnKind.MAIN and not reading.has_assistant:
        return linking.delegating_turn(reading, known, now)
    return None


def _next_state(reading: Reading, anchor: Anchor | None, kind: TurnKind) -> tuple[Message, ...] | None:
    """What followed the parent's reply: people's words, tool results, notes; a client's own orders left out."""
    if anchor is None or kind is TurnKind.SIDE:
        return None
    following = []
    for message in reading.messages[anchor.position + 1 :]:
        if is_ephemeral(message.role, message.text):
            continue
        if message.role != "user":
            following.append(message.message)
            continue
        plain = plain_user_text(message.text)
        if not is_poll(plain) and not (kind is TurnKind.COMPACTION and is_summary_order(plain)):
            following.append(message.message if plain == message.text else with_text(message.message, plain))
    return tuple(following) or None


def _take_reply(turn: KnownTurn, reply: Message, reply_id: str) -> None:
    """Set what a turn can be found by from its reply."""
    calls = reply.get("tool_calls") or ()
    turn.call_ids = tuple(filter(None, (alphanumeric(call.get("id")) for call in calls)))
    text = text_of(reply.get("content"))
    lines = text_lines(text)
    if lines:
        turn.reply_text = "\n".join(lines)[:KEPT_TEXT]
        turn.reply_keys = (whole_key(lines), *list(backward_keys(lines))[-1:])
    if (key := calls_key(reply)) is not None:
        turn.reply_keys += (key,)
    if turn.asks_summary:
        turn.summary = summary_core(text)
    if reply_id:
        turn.call_ids += (alphanumeric(reply_id),)


def _details(turn: KnownTurn, session: SessionState, credential: str) -> dict[str, Any]:
    return {
        "credential": credential,
        "base": session.base,
        "name": turn.name,
        "trace": turn.trace,
        "request_key": turn.request_key.hex(),
        "root_key": turn.root_key.hex(),
        "shape": turn.shape,
        "user_text": turn.user_text,
        "root_text": turn.root_text,
        "num_kept": turn.num_kept,
        "asks_summary": turn.asks_summary,
    }


def _restored(stored: Turn, kept: Mapping[str, Any]) -> KnownTurn:
    return KnownTurn(
        turn_id=stored.turn_id,
        session_id=stored.session_id,
        parent_id=stored.parent_id,
        kind=stored.kind,
        request_key=bytes.fromhex(kept["request_key"]),
        root_key=bytes.fromhex(kept["root_key"]),
        shape=kept["shape"],
        user_text=kept["user_text"],
        root_text=kept["root_text"],
        num_kept=kept["num_kept"],
        asks_summary=kept["asks_summary"],
        arrived_at=stored.created_at,
        name=kept["name"],
        trace=kept["trace"],
        state=ReplyState.DELIVERED,
        ended_at=stored.created_at,
    )
