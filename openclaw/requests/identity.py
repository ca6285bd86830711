"""Extracts the session that a client claims: from headers, body fields, `user`, or a line in the text.

The claim is a hint for the *session* only. The parent of a request is always found in its messages
(`openclaw.conversations.index`): titles share the session header of their conversation, sub-agents the cache key of
their parent, and a fork uses a new name for an old history.

A name is *firm* when it identifies one conversation, and *loose* when it identifies a person, a cache or a workspace
with many conversations; then the history decides which of them a request continues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from slime.errors import RequestError, nearest
from slime.types import TurnKind

from openclaw.requests.plain_text import clipped

FIRM_HEADERS = (
    "x-session-id",  # ours; opencode; OpenClaw with a compat switch or our plug-in
    "x-claude-code-session-id",
    "thread-id",  # Codex: differs from session-id in sub-agents
    "session-id",
    "session_id",
    "x-session-affinity",
)
AGENT_HEADER = "x-claude-code-agent-id"  # a sub-agent within its parent's session
TURN_TYPE_HEADER, DONE_HEADER = "x-turn-type", "x-session-done"
BODY_SESSION, BODY_TURN_TYPE, BODY_DONE = "session_id", "turn_type", "session_done"

IDENTITY_HEADERS = frozenset(
    {
        *FIRM_HEADERS,
        AGENT_HEADER,
        TURN_TYPE_HEADER,
        DONE_HEADER,
        "x-parent-session-id",
        "x-client-request-id",
        "x-codex-window-id",
        "x-codex-turn-metadata",
        "x-codex-turn-state",
        "x-codex-parent-thread-id",
        "x-openai-subagent",
        "traceparent",
        "tracestate",
        "cookie",
    }
)
IDENTITY_FIELDS = frozenset(
    {
        BODY_SESSION,
        BODY_TURN_TYPE,
        BODY_DONE,
        "user",
        "metadata",
        "prompt_cache_key",
        "client_metadata",
        "safety_identifier",
    }
)

_RUNTIME = re.compile(r"Runtime: agent=(\S{1,64}+) \| session=(\S{1,256}+)")
_NAME, _NAME_HEAD = 256, 96  # longest name kept whole; the head of a longer one, before its digest
_SEARCHED = 65_536  # characters at both ends of a text that are searched for a session
_METADATA = 4_096  # characters of a JSON string that are searched for a session
_TRUE = frozenset({"1", "true", "yes"})


@dataclass(frozen=True, slots=True)
class Identity:
    """A client's claims about a request.

    >>> Identity(name="43a515e3-…", is_firm=True, source="header", retry_count=1)

    Attributes:
        name: the session's name; None if the request names none.
        is_firm: the name identifies one conversation.
        source: `header`, `body`, `user` or `content` (a line in the text, or none).
        kind: the turn type that the client declares; None if it declares none.
        is_done: the client declares the session ended with this request.
        retry_count: retries of this request, as counted by the client's library.
        trace: the W3C trace id; in OpenClaw, one user turn with its tool loop and retries.
    """

    name: str | None = None
    is_firm: bool = False
    source: str = "content"
    kind: TurnKind | None = None
    is_done: bool = False
    retry_count: int = 0
    trace: str | None = None

    def or_named_in(self, first_user_text: str) -> Identity:
        """The same, with the name from a line of the conversation's first message if there is no other."""
        if self.name is not None or "Runtime: agent=" not in first_user_text:
            return self
        match = _RUNTIME.search(clipped(first_user_text, _SEARCHED))
        return self if match is None else replace(self, name=_bounded(match.group(2)))


def identify(headers: Mapping[str, str], body: Mapping[str, Any]) -> Identity:
    """The claims in headers (lower-case names) and body, strongest first.

    Raises:
        RequestError: the turn type is not one of main, side, retry, branch, compaction.
    """
    name, is_firm, source = _name(headers, body)
    name = _bounded(name) if name is not None else None
    said = headers.get(TURN_TYPE_HEADER) or body.get(BODY_TURN_TYPE)
    done = headers.get(DONE_HEADER, body.get(BODY_DONE))
    retries = headers.get("x-stainless-retry-count", "")
    trace = headers.get("traceparent", "").split("-")
    return Identity(
        name=name,
        is_firm=is_firm,
        source=source,
        kind=_turn_kind(said) if said else _kind_in_metadata(headers),
        is_done=done is True or str(done).strip().lower() in _TRUE,
        retry_count=int(retries[:4]) if retries.isdecimal() else 0,
        trace=trace[1][:_NAME_HEAD] if len(trace) == 4 else None,
    )


def strip_identity(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body without everything that identifies a session."""
    return (
        {name: value for name, value in headers.items() if name not in IDENTITY_HEADERS},
        {name: value for name, value in body.items() if name not in IDENTITY_FIELDS},
    )


def _name(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[str | None, bool, str]:
    for header in FIRM_HEADERS:
        if value := headers.get(header):
            agent = headers.get(AGENT_HEADER)
            return (f"{value}/{agent}" if agent else value), True, "header"
    if value := _text(body.get(BODY_SESSION)):
        return value, True, "body"
    if value := _metadata_session(body.get("metadata")) or _text(body.get("prompt_cache_key")):
        return value, False, "body"
    if value := _text(body.get("user")):
        return value, False, "user"
    return None, False, "content"


def _bounded(name: str) -> str:
    """Bound a name, which is stored with every turn: beyond 256 characters it becomes its head and a digest."""
    if len(name) <= _NAME:
        return name
    return f"{name[:_NAME_HEAD]}~{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _metadata_session(metadata: object) -> str | None:
    """A session named in `metadata`: directly, or in the JSON string that Claude Code puts into `user_id`."""
    if not isinstance(metadata, dict):
        return None
    if session := _text(metadata.get("session_id")):
        return session
    user = _text(metadata.get("user_id"))
    if user is None or not user.startswith("{") or len(user) > _METADATA:
        return None
    try:
        fields = json.loads(user)
    except (ValueError, RecursionError):
        return None
    return _text(fields.get("session_id")) if isinstance(fields, dict) else None


def _kind_in_metadata(headers: Mapping[str, str]) -> TurnKind | None:
    metadata = headers.get("x-codex-turn-metadata", "")[:_METADATA]
    return TurnKind.COMPACTION if '"request_kind":"compaction"' in metadata.replace(" ", "") else None


def _turn_kind(said: object) -> TurnKind:
    word = str(said)[:_NAME_HEAD].strip().lower()
    kinds = [kind.value for kind in TurnKind]
    if word not in kinds:
        raise RequestError(
            f"turn type must be one of {', '.join(kinds)}, not {word!r}{nearest(word, kinds)}", "turn_type"
        )
    return TurnKind(word)
