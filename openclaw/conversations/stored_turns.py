"""Converts known turns to and from their stored form, and computes the keys that the store indexes them by.

    KnownTurn ─ matching_of ─▶ Turn.matching ─▶ store ─▶ TurnNote ─ known_from ─▶ KnownTurn
        │
        └─ keys_of ─▶ digests of credential, kind of key and value: the store's index, not read at startup

Keys are hashed with the credential, so a look-up needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Protocol

from slime.messages import text_of
from slime.types import Message, TurnKind, TurnState

from openclaw.conversations.known_turns import KnownTurn, KnownTurns, SessionState
from openclaw.requests.canonical import alphanumeric
from openclaw.requests.plain_text import summary_core
from openclaw.requests.reading import (
    KEPT_TEXT,
    Reading,
    backward_keys,
    calls_key,
    forward_keys,
    lines_and_key,
    whole_key,
)
from openclaw.requests.turn_ids import turn_of

MAX_WANTED = 64
"""The most turn ids, and keys, looked up for one request."""
_KEPT_SUMMARY = 16_384  # leading characters of a summary that are compared
_MAX_UNKNOWN = 4  # replies at a request's end that are looked up in the store
_MAX_JOINED = 16  # line ends at which the last of them is split into several replies
_MAX_REPLY = 65_536  # characters of the longest reply that is looked up


class StoredTurn(Protocol):
    """A turn read from the store: a `Turn`, or a `TurnNote` without the long fields."""

    @property
    def turn_id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def kind(self) -> TurnKind: ...
    @property
    def state(self) -> TurnState: ...
    @property
    def reply(self) -> Message: ...
    @property
    def retry_of(self) -> str | None: ...
    @property
    def created_at(self) -> float: ...
    @property
    def matching(self) -> Mapping[str, Any] | None: ...


def take_reply(turn: KnownTurn, reply: Message, reply_id: str = "") -> None:
    """Set the fields by which a turn is found through its reply."""
    turn.call_ids = tuple(filter(None, (alphanumeric(call.get("id")) for call in reply.get("tool_calls") or ())))
    text = text_of(reply.get("content"))
    lines, key = lines_and_key(text)
    turn.reply_text = "\n".join(lines)[:KEPT_TEXT]
    turn.reply_keys = (*_stored_reply_keys(reply, lines, key), *list(backward_keys(lines))[-1:])
    if turn.asks_summary:
        turn.summary = summary_core(text[:_KEPT_SUMMARY])
    if reply_id:
        turn.call_ids += (alphanumeric(reply_id),)


def _stored_reply_keys(reply: Message, lines: Sequence[str], key: bytes) -> tuple[bytes, ...]:
    calls = calls_key(reply)
    return (*([key] if lines else []), *([calls] if calls is not None else []))


def matching_of(turn: KnownTurn, session: SessionState, credential: str) -> dict[str, Any]:
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


def known_from(stored: StoredTurn, kept: Mapping[str, Any], at: float) -> KnownTurn:
    """Rebuild a known turn, its reply included; `at` is its time on the index's clock."""
    turn = KnownTurn(
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
        arrived_at=at,
        name=kept["name"],
        trace=kept["trace"],
        ended_at=at,
    )
    take_reply(turn, stored.reply)
    return turn


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _key(credential: str, kind: bytes, value: bytes) -> bytes:
    return blake2b(kind + b"\x1f" + value, digest_size=16, key=bytes.fromhex(credential)).digest()


def _place(request_key: bytes, reply_key: bytes) -> bytes:
    return request_key + reply_key


def owner_of(stored: StoredTurn) -> str | None:
    """The hash of the credential that a turn was captured with; None if it was not captured."""
    return None if stored.matching is None else str(stored.matching["credential"])


def keys_of(stored: StoredTurn) -> tuple[bytes, ...]:
    """The keys under which a turn is stored; empty if it was not captured."""
    kept = stored.matching
    if kept is None:
        return ()
    reply_keys = _stored_reply_keys(stored.reply, *lines_and_key(text_of(stored.reply.get("content"))))
    return _keys(kept["credential"], bytes.fromhex(kept["request_key"]), reply_keys, kept["base"])


def keys_of_known(turn: KnownTurn, credential: str) -> tuple[bytes, ...]:
    """The keys of a known turn, without its session's."""
    return _keys(credential, turn.request_key, turn.reply_keys, None)


def _keys(credential: str, request_key: bytes, reply_keys: tuple[bytes, ...], base: str | None) -> tuple[bytes, ...]:
    keys = [_key(credential, b"place", _place(request_key, reply_key)) for reply_key in reply_keys]
    keys += [_key(credential, b"reply", reply_key) for reply_key in reply_keys]
    return tuple(dict.fromkeys([*keys, *([session_key(base, credential)] if base is not None else [])]))


def session_key(name: str, credential: str) -> bytes:
    """The key shared by every turn of the session of that name."""
    return _key(credential, b"name", name.encode("utf-8", "surrogatepass"))


def wanted_turns(reading: Reading, known: KnownTurns) -> Iterator[str]:
    """Turn ids encoded in the request's call ids and not cached, last ones first; at most 64."""
    previous = reading.request.previous_reply_id
    ids = (call_id for message in reversed(reading.messages) for call_id in message.call_ids)
    named = filter(None, map(turn_of, (*([previous] if previous else ()), *islice(ids, 16 * MAX_WANTED))))
    return islice((turn_id for turn_id in dict.fromkeys(named) if turn_id not in known.turns), MAX_WANTED)


def wanted_keys(reading: Reading, known: KnownTurns, credential: str) -> Iterator[bytes]:
    """Keys of the last replies in a request, from the newest back to the first cached match."""
    num_unknown = 0
    for position in range(len(reading.messages) - 1, -1, -1):
        message = reading.messages[position]
        if any(known.by_call_id(call_id) is not None for call_id in message.call_ids):
            return
        if message.role != "assistant" or len(message.text) > _MAX_REPLY:
            continue
        (lines, key), before = lines_and_key(message.text), reading.key_before(position)
        reply_keys = _stored_reply_keys(message.message, lines, key)
        if any(turn.request_key == before for own in reply_keys for turn in known.by_reply(own)):
            return
        yield from _keys(credential, before, reply_keys, None)
        if num_unknown == 0 and len(lines) > 1:
            ends = (whole_key(lines[-count:]) for count in range(1, min(_MAX_JOINED, len(lines)) + 1))
            for part in (*ends, *forward_keys(lines[:_MAX_JOINED])):
                yield _key(credential, b"reply", part)
        num_unknown += 1
        if num_unknown == _MAX_UNKNOWN:
            return
