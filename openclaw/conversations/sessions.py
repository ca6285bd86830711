"""Chooses the session of a request and names new sessions."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from slime.types import TurnKind

from openclaw.conversations import linking
from openclaw.conversations.known_turns import KnownTurn, KnownTurns, SessionState
from openclaw.requests.identity import Identity
from openclaw.requests.reading import Reading
from openclaw.requests.turn_ids import new_turn_id


@dataclass(frozen=True, slots=True)
class Request:
    """The inputs for choosing a request's session.

    Attributes:
        free: session ids known to be unused by other credentials; None when only cached sessions exist.
    """

    reading: Reading
    identity: Identity
    parent: KnownTurn | None
    retried: KnownTurn | None
    kind: TurnKind
    now: float
    free: Container[str] | None = None


class SessionChooser:
    """Chooses sessions and keeps the session ids of different credentials apart."""

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}  # session id -> hash of the credential

    def claim(self, session_id: str, credential: str) -> None:
        self._owner[session_id] = credential

    def release(self, session_id: str) -> None:
        self._owner.pop(session_id, None)

    def choose(self, request: Request, known: KnownTurns, credential: str) -> SessionState:
        """By firm name, else the session of the repeated or continued turn, else by loose name, else by content."""
        identity = request.identity
        if identity.is_firm and identity.name is not None:
            return self._named(identity.name, request, known, credential)
        if request.retried is not None:
            return known.sessions[request.retried.session_id]
        about = request.kind in (TurnKind.SIDE, TurnKind.COMPACTION)
        if request.parent is not None:
            session = known.sessions[request.parent.session_id]
            if identity.name is None or session.num_alive or not request.parent.asks_summary:
                return session  # except that of a summary that matched no conversation
        if identity.name is not None and not (about and identity.name not in known.newest_session_of):
            session = self._named(identity.name, request, known, credential)
            starts = request.kind is TurnKind.MAIN and not request.reading.has_assistant
            return (
                self._next_under(identity.name, session, request, credential)
                if starts and session.num_alive
                else session
            )
        by_content = _by_content(request, known)
        if by_content is not None:
            return by_content
        if identity.name is not None:
            return self._named(identity.name, request, known, credential)
        return _new("s" + new_turn_id(), None)

    def _named(self, name: str, request: Request, known: KnownTurns, credential: str) -> SessionState:
        """The newest session of that name under this credential, else a new one."""
        session_id = known.newest_session_of.get(name)
        return (
            known.sessions[session_id] if session_id is not None else self._first_free(name, name, request, credential)
        )

    def _next_under(self, name: str, session: SessionState, request: Request, credential: str) -> SessionState:
        """A new conversation under a loose name: `name#2`, `name#3`, …"""
        number = session.session_id.partition("~")[0].rpartition("#")[2] if session.session_id != name else ""
        count = int(number) + 1 if number.isdecimal() and len(number) < 10 else 2
        return self._first_free(f"{name}#{count}", name, request, credential)

    def _first_free(self, session_id: str, name: str, request: Request, credential: str) -> SessionState:
        """A new session under the client's name, suffixed when another credential has, or may have, that id.

        Plain ids contain no `~`, so an id with a credential's suffix belongs to that credential.
        """
        is_free = request.free is None or session_id in request.free
        owner = self._owner.get(session_id, credential if is_free else None)
        if owner != credential or "~" in session_id:
            session_id = f"{session_id}~{credential[:16]}"
        return _new(session_id, name)


def _new(session_id: str, base: str | None) -> SessionState:
    return SessionState(session_id, base, b"", 0)


def _by_content(request: Request, known: KnownTurns) -> SessionState | None:
    reading, now = request.reading, request.now
    if request.kind in (TurnKind.SIDE, TurnKind.COMPACTION):
        return linking.session_spoken_of(reading, request.kind, known, now)
    if not reading.has_assistant:
        labelled = linking.session_labelled_before(reading, known, now)
        return labelled or linking.session_started_over(reading, known, now)
    # Replies that are not ours: examples if without tool calls, else a conversation continued from another server.
    if any(message.call_ids for message in reading.messages):
        return linking.session_with_root(reading, known)
    return None
