"""Places each request: its session, its parent turn, its kind, and the next state of the parent's reply.

    IncomingRequest ─ begin ─▶ Placement ─ engine ─▶ finish(reply) | fail
                         │
                         ├─ identity     the session the client names      (a hint for the session)
                         ├─ ancestry     the last reply of ours in it      (the parent)
                         ├─ kinds        main, side or compaction          (its shape, then its words)
                         └─ known turns  equal requests, continuations     (retry, branch)

One `ConversationIndex` serves one event loop and does no I/O. It caches keys and short texts of the newest turns; the
rest is in the store, and `restore` brings stored turns back, after a restart or when an old conversation continues.
Turns of different credentials are never matched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from slime.errors import RequestError
from slime.types import Message, TurnKind, TurnState

from openclaw.conversations import linking
from openclaw.conversations.ancestry import Anchor, AnchorSearch
from openclaw.conversations.known_turns import CONTINUATIONS, KnownTurn, KnownTurns, ReplyState, SessionState
from openclaw.conversations.postings import Shares
from openclaw.conversations.repeats import find_retried, is_continued
from openclaw.conversations.sessions import Request, SessionChooser
from openclaw.conversations.stored_turns import StoredTurn, known_from, matching_of, owner_of, take_reply
from openclaw.requests.canonical import CanonicalRequest, with_text
from openclaw.requests.identity import Identity
from openclaw.requests.kinds import is_summary_order, kind_of
from openclaw.requests.plain_text import clipped, is_ephemeral, is_poll, plain_user_text
from openclaw.requests.reading import KEPT_TEXT, Reading
from openclaw.requests.turn_ids import new_turn_id


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as it reached the server.

    Attributes:
        identity: the client's claims about its session.
        credential: the API key as sent; only a hash of it is kept.
        arrived_at: seconds on the index's clock; 0 is now.
        connection: an id of the client's connection or client object; breaks ties only.
    """

    conversation: CanonicalRequest
    identity: Identity = Identity()
    credential: str = ""
    arrived_at: float = 0.0
    connection: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a request.

    >>> Placement(turn_id="t0…2", session_id="s0…1", parent_id="t0…1", kind=TurnKind.MAIN, source="content",
    ...           next_state=({"role": "user", "content": "Shorter, please."},))

    Attributes:
        turn_id: new id of the turn that this request begins.
        parent_id: the turn whose reply is the last of ours in the request; may belong to another session (a fork).
        retry_of: the turn whose request this one repeats.
        was_answered: that turn's reply was sent, but did not arrive.
        next_state: the chat messages after the parent's reply without the client's ephemeral ones; None without a
            parent, without such messages, and for side requests, which hold neither people's words nor tool results.
        source: where the session's name comes from: `header`, `body`, `user` or `content`.
        is_done: the client declares the session ended with this request.
        credential: hash of the request's credential.
        matching: stored as `Turn.matching`, from which `restore` rebuilds the turn.
    """

    turn_id: str
    session_id: str
    parent_id: str | None
    kind: TurnKind
    source: str
    next_state: tuple[Message, ...] | None = None
    retry_of: str | None = None
    was_answered: bool = False
    is_done: bool = False
    credential: str = ""
    matching: Mapping[str, Any] = field(default_factory=dict)


class ConversationIndex:
    """Places requests among the known turns. Single-threaded; every call takes microseconds.

    Eviction is fair: a full cache evicts the least recently used turn of the credential that holds the most, so a flood
    under one key cannot evict the turns of others.

    Args:
        max_turns, max_chars: cached turns and characters of their texts, over all credentials.
        clock: monotonic seconds; wall-clock time decides nothing.
        on_forget: called for every evicted turn with the hash of its credential.
    """

    def __init__(
        self,
        max_turns: int = 50_000,
        max_chars: int = 100_000_000,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_forget: Callable[[KnownTurn, str], None] = lambda turn, credential: None,
    ) -> None:
        self._max_turns, self._max_chars = max_turns, max_chars
        self._clock = clock
        self._on_forget = on_forget
        self._known: dict[str, KnownTurns] = {}  # by hash of the credential
        self._shares = Shares()
        self._num_chars = 0
        self._sessions = SessionChooser()

    @property
    def num_turns(self) -> int:
        """The number of cached turns."""
        return self._shares.total

    def known(self, credential: str) -> KnownTurns:
        """The known turns of a credential, by its hash; empty for a new one."""
        return self._known.get(credential) or KnownTurns()

    # ── the life of a turn ───────────────────────────────────────────────────────────────────────────────────────────

    def begin(
        self, request: IncomingRequest, reading: Reading | None = None, free: Container[str] | None = None
    ) -> Placement:
        """Place a request and register its turn as in flight.

        Args:
            reading: of the request, if already made.
            free: session ids known to be unused by other credentials; None when only cached sessions exist.
        """
        credential = hash_credential(request.credential)
        reading = reading or Reading(request.conversation)
        identity = request.identity.or_named_in(reading.raw_first_user)
        known = self._known.setdefault(credential, KnownTurns())
        now = request.arrived_at or self._clock()

        anchor = AnchorSearch(reading, known, identity, request.connection).find()
        retried = find_retried(reading, known, identity, anchor, now)
        seen = kind_of(reading.request, has_our_replies=anchor is not None)
        kind = _kind(identity.kind or seen, reading, known, anchor, retried)
        parent = _parent(reading, known, anchor, retried, kind, now)
        about = Request(reading, identity, parent, retried, kind, now, free)
        session = self._sessions.choose(about, known, credential)

        turn = KnownTurn(
            turn_id=new_turn_id(),
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
        was_answered = retried is not None and retried.state is ReplyState.DELIVERED
        if retried is not None:
            retried.retried_by = turn.turn_id
            if was_answered:
                known.add_failure(retried)
        if kind is TurnKind.SIDE:
            session.has_label = True
            if identity.name is None and not session.root_key:
                known.waiting_labels.append((turn, clipped(reading.all_user_text, KEPT_TEXT)))
        return Placement(
            turn_id=turn.turn_id,
            session_id=turn.session_id,
            parent_id=turn.parent_id,
            kind=kind,
            source=identity.source,
            next_state=_next_state(reading, anchor, kind),
            retry_of=retried.turn_id if retried is not None else None,
            was_answered=was_answered,
            is_done=identity.is_done,
            credential=credential,
            matching=matching_of(turn, session, credential),
        )

    def finish(
        self, placement: Placement, reply: Message, *, delivered: bool = True, ended_at: float = 0.0, reply_id: str = ""
    ) -> None:
        """Register the reply as far as it was sent: a later request may contain even a partial one.

        Args:
            reply: the assistant message, with the tool-call ids that the client received.
            delivered: it was sent to its end while the connection was open.
            reply_id: an id by which later requests may reference it, if that does not encode the turn already.
        """
        turn, known = self._find(placement)
        if turn is None:  # evicted while in flight
            return
        self._num_chars -= turn.num_chars
        take_reply(turn, reply, reply_id)
        self._num_chars += turn.num_chars
        turn.ended_at = ended_at or self._clock()
        known.add_reply(turn)
        if delivered and (turn.call_ids or turn.reply_text):
            known.add_delivery(turn)
        else:
            known.add_failure(turn)

    def fail(self, placement: Placement, *, ended_at: float = 0.0) -> None:
        """Register a turn of whose reply nothing reached the client: an error, a closed connection."""
        turn, known = self._find(placement)
        if turn is not None:
            turn.ended_at = ended_at or self._clock()
            known.add_failure(turn)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(self, turns: Iterable[StoredTurn], *, clock_offset_s: float = 0.0) -> None:
        """Load stored turns into the cache; skips known turns and those stored without capture.

        Args:
            clock_offset_s: added to a Unix time to get the index's clock.
        """
        for stored in sorted(turns, key=lambda turn: turn.created_at):
            kept, credential = stored.matching, owner_of(stored)
            if kept is None or credential is None:
                continue
            known = self._known.setdefault(credential, KnownTurns())
            if stored.turn_id in known.turns:
                continue
            turn = known_from(stored, kept, stored.created_at + clock_offset_s)
            session = known.sessions.get(stored.session_id) or SessionState(
                stored.session_id, kept["base"], b"", turn.shape
            )
            self._remember(turn, session, known, credential)
            known.add_reply(turn)
            if stored.state is TurnState.ABORTED:
                known.add_failure(turn)
            else:
                known.add_delivery(turn)
            if stored.retry_of is not None and stored.retry_of in known.turns:
                known.turns[stored.retry_of].retried_by = turn.turn_id

    def newest_reply(self, name: str) -> str | None:
        """The turn of the last delivered reply in the newest session of that name.

        Raises:
            RequestError: sessions of several API keys have the name.
        """
        holders = [known for known in self._known.values() if name in known.newest_session_of]
        if len(holders) > 1:
            raise RequestError("several API keys have a session of this name: send turn_id instead", "turn_id")
        for known in holders:
            session = known.sessions[known.newest_session_of[name]]
            return session.newest_reply if session.newest_reply in known.turns else None
        return None

    def _remember(self, turn: KnownTurn, session: SessionState, known: KnownTurns, credential: str) -> None:
        if not session.root_key and turn.kind in CONTINUATIONS:
            session.root_key, session.shape, session.root_text = turn.root_key, turn.shape, turn.root_text
        if turn.root_text == session.root_text:
            turn.root_text = session.root_text  # share one string among the turns of a session
        known.begin(turn, session)
        self._sessions.claim(session.session_id, credential)
        self._shares.add(credential)
        self._num_chars += turn.num_chars
        while self._shares.total > self._max_turns or (self._num_chars > self._max_chars and self._shares.total > 1):
            self._forget_one()

    def _forget_one(self) -> None:
        credential = self._shares.largest()
        known = self._known[credential]
        turn = known.forget(next(iter(known.turns)))
        self._shares.remove(credential)
        self._num_chars -= turn.num_chars
        if turn.session_id not in known.sessions:
            self._sessions.release(turn.session_id)
        if not known.turns:
            del self._known[credential]
        self._on_forget(turn, credential)

    def _find(self, placement: Placement) -> tuple[KnownTurn | None, KnownTurns]:
        known = self.known(placement.credential)
        return known.turns.get(placement.turn_id), known


def hash_credential(credential: str) -> str:
    """Hash a credential: enough to tell two apart, useless to authenticate with."""
    return blake2b(credential.encode("utf-8", "surrogatepass"), digest_size=16, person=b"openclaw-capture").hexdigest()


def _kind(
    kind: TurnKind, reading: Reading, known: KnownTurns, anchor: Anchor | None, retried: KnownTurn | None
) -> TurnKind:
    """Refine a main turn into retry or branch, which only matching can detect."""
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
    """The messages after the parent's reply: people's words, tool results, notes; without the client's own orders."""
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
