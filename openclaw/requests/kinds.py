"""Classifies a request as main, side or compaction, by its structure first and its wording second.

A side request is client housekeeping: a title, a commit message, a memory flush, a request on an agent's own schedule.
A compaction asks for a summary that replaces the history. Both offer no tools (or forbid their use) and speak about a
conversation, not within it. Retries and branches do not depend on wording: see `openclaw.conversations.index`.

The patterns are short and broad on purpose: they match a task, not one client's sentence.
"""

from __future__ import annotations

import re

from slime.types import TurnKind

from openclaw.requests.canonical import CanonicalMessage, CanonicalRequest
from openclaw.requests.plain_text import clipped, is_ephemeral, plain_user_text

_TASK = 300  # leading characters of a user message that are searched for a label request
_HEAD = 1200  # leading characters of an instruction that are searched for its task
_OPENING = 16_000  # leading characters of a message within which a transcript must begin

_MAKE = r"(?:generat|creat|writ|produc|provid|suggest|output)\w*"
_LABELS = r"(?:title|commit message|branch name|file ?name slug|slug|emoji|tags?|headline|topic label)s?"
_SIDE_SYSTEM = re.compile(
    rf"\b{_MAKE}\b[^\n]{{0,80}}\b{_LABELS}\b|\b(?:title|commit message|tag) generator\b", re.IGNORECASE
)
# People ask for titles too; only a program asks for the title *of this conversation*.
_SIDE_USER = re.compile(
    rf"\b{_MAKE}\b[^\n]{{0,80}}\b{_LABELS}\b[^\n]{{0,40}}\b(?:this|the) (?:conversation|chat|session|thread)\b"
    rf"|\b(?:based on|given|for) (?:this|the) (?:conversation|chat|session|thread)[^\n]{{0,60}}\b{_LABELS}\b"
    r"|^### Task:\s+(?:generate|suggest|analyze)",
    re.IGNORECASE,
)
_SIDE_SCHEMA_FIELDS = frozenset({"title", "tags", "queries", "follow_ups", "followups", "isnewtopic", "emoji", "slug"})

_SUMMARISE = r"(?:summari[sz]\w*|summary|compact(?:ed|ion|ing)?|condens\w+)"
_SUBJECT = r"(?:conversation|context|history|transcript|dialogue?|session|messages|work so far)"
_COMPACTION = re.compile(
    rf"\b{_SUMMARISE}\b[^\n]{{0,80}}\b{_SUBJECT}\b|\b{_SUBJECT}\b[^\n]{{0,40}}\b{_SUMMARISE}\b"
    r"|\bcontext extraction\b|\bhandoff summary\b",
    re.IGNORECASE,
)
# The same instruction inside a conversation, where people also mention summaries and histories: it must be an
# imperative, a page long, and forbid tools.
_SUMMARY_ORDER = re.compile(
    rf"\b(?:creat|writ|produc|provid|generat|giv)\w*\b[^\n]{{0,60}}\bsummary\b[^\n]{{0,40}}\b{_SUBJECT}\b"
    rf"|\bsummari[sz]e (?:the|this|our|all)\b[^\n]{{0,40}}\b{_SUBJECT}\b"
    r"|\bcontext (?:checkpoint )?compaction\b|\bhandoff summary\b",
    re.IGNORECASE,
)
_NO_TOOLS = re.compile(r"\b(?:not|never|n't|without)\b[^.\n]{0,30}\btools?\b|\btext only\b", re.IGNORECASE)
_TRANSCRIPT = re.compile(
    r"^[^\S\n]*+(?:<conversation>|<messages>|\[user\]:|# ?user\b|user:|human:|assistant:|# ?assistant\b)",
    re.IGNORECASE | re.MULTILINE,
)
_SEARCHED = 65_536  # characters at both ends of a message that are searched
_MIN_INSTRUCTION = 300  # a person's "summarise our conversation" is a line; a client's instruction is a page

# OpenClaw's scheduled requests inside a conversation; its users' messages carry a time stamp.
_AGENT_CLOCK = (
    "[cron:",
    "Pre-compaction memory flush",
    "A scheduled reminder has been triggered",
    "[Subagent Context]",
)
_AGENT_CLOCK_MARKS = ("\nReference UTC: ", "isUser=false")


def kind_of(request: CanonicalRequest, *, has_our_replies: bool) -> TurnKind:
    """`MAIN`, `SIDE` or `COMPACTION`.

    Args:
        has_our_replies: whether the request contains a reply of ours as an assistant message.
    """
    last = last_user_message(request.messages)
    text = plain_user_text(clipped(last.text, _SEARCHED)) if last is not None else ""
    goes_on = has_our_replies or any(message.role == "assistant" for message in request.messages)
    if goes_on:
        is_compaction = _speaks_last(last, request.messages) and _orders_summary(request, text)
    else:
        is_compaction = _holds_transcript(request, text)
    if is_compaction:
        return TurnKind.COMPACTION
    return TurnKind.SIDE if _is_side(request, text, goes_on) else TurnKind.MAIN


def last_user_message(messages: tuple[CanonicalMessage, ...]) -> CanonicalMessage | None:
    """The newest user message that is not ephemeral."""
    for message in reversed(messages):
        if message.role == "user" and not is_ephemeral("user", message.text):
            return message
    return None


def is_summary_order(text: str) -> bool:
    """Whether a text is a long instruction to summarise the conversation before it."""
    return len(text) >= _MIN_INSTRUCTION and _SUMMARY_ORDER.search(text[:_HEAD]) is not None


def _speaks_last(message: CanonicalMessage | None, messages: tuple[CanonicalMessage, ...]) -> bool:
    """Whether only notes follow the message."""
    for other in reversed(messages):
        if other is message:
            return True
        if other.role in ("assistant", "tool"):
            return False
    return False


def _orders_summary(request: CanonicalRequest, text: str) -> bool:
    """Whether the history ends with an instruction to summarise it without tools."""
    return is_summary_order(text) and (request.num_tools == 0 or _NO_TOOLS.search(text[:_HEAD]) is not None)


def _holds_transcript(request: CanonicalRequest, text: str) -> bool:
    """Whether the request contains the history as one text to summarise."""
    if request.num_tools or not _TRANSCRIPT.search(text[:_OPENING]) or _SIDE_USER.search(text[:_TASK]):
        return False
    head = request.system[:_HEAD]
    if _COMPACTION.search(head):
        return not _SIDE_SYSTEM.search(head)
    return len(text) >= _MIN_INSTRUCTION and _COMPACTION.search(text[:_HEAD]) is not None


def _is_side(request: CanonicalRequest, text: str, goes_on: bool) -> bool:
    if text.startswith(_AGENT_CLOCK) or any(mark in text for mark in _AGENT_CLOCK_MARKS):
        return True
    if request.num_tools or goes_on:
        return False
    if request.max_tokens == 1:  # a probe
        return True
    fields = (request.output_schema or {}).get("properties")
    if isinstance(fields, dict) and fields and {str(name).lower() for name in fields} <= _SIDE_SCHEMA_FIELDS:
        return True
    return bool(_SIDE_SYSTEM.search(request.system[:_HEAD]) or _SIDE_USER.search(text[:_HEAD]))
