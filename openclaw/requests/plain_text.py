"""Strips what clients wrap around the text of people and models.

Clients add time stamps, reminders, run-time lines and whole messages for one request only, and remove them later. Texts
of the same message must compare equal with and without those additions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

# Messages that start with one of these are appended to one request and missing in the next.
_EPHEMERAL_STARTS = (
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>",
    "<environment_context>",
    "<user_instructions>",
)
# Notes that an agent inserts as role `system`: people's messages arrive there too (typed while the agent works), so
# only the known kinds of note are dropped.
_AGENT_NOTES = (
    "Available agent types",
    "The following skills are available",
    "The task tools haven't been used",
    "The TodoWrite tool hasn't been used",
    "Called the ",
    "Result of calling the ",
)
# Traces in the history of requests that the agent made on its own schedule.
_POLL_MARKERS = ("[OpenClaw heartbeat poll]", "[OpenClaw cron wake]")

# Every search below is linear: it stops where no closing mark can follow, and repetitions are bounded.
_RUNTIME_LINE = re.compile(r"Runtime: agent=\S{1,64}+ \| session=[^\n]*+")
_TIMESTAMP = re.compile(r"\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d[^\]]{0,64}+\] ")
_CHANNEL_CONTEXT = re.compile(r"Conversation info: ⟦openclaw:ctx⟧\s*+```json")
_SUMMARY_TAGS = re.compile(r"</?(?:summary|analysis)>")
_SPACE = re.compile(r"\s*+")
_WRITTEN_LINE = re.compile(r"\S[^\n]*+")  # skips blank lines without allocating them
_MAX_NOTES, _MAX_SPANS = 64, 1_000  # removed from one text at most; clients insert a few
_TIMESTAMP_WITHIN = 512  # leading characters of a message
_SLICE = 1 << 16  # characters of a long text processed without yielding


def without_spans(text: str, opening: str, closing: str, instead: str = "") -> str:
    """The text without the spans from an opening mark to the next closing one; an unclosed mark stays text.

    >>> without_spans("<b>no</b>yes<b>", "<b>", "</b>")
    'yes<b>'
    """
    kept: list[str] = []
    start, position = text.find(opening), 0
    while start >= 0 and len(kept) < _MAX_SPANS:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        kept += (text[position:start], instead)
        position = end + len(closing)
        start = text.find(opening, position)
    return "".join((*kept, text[position:])) if position else text


def _without_runtime_lines(text: str) -> str:
    kept: list[str] = []
    position = 0
    for match in islice(_RUNTIME_LINE.finditer(text), _MAX_NOTES):
        kept.append(text[position : match.start()].rstrip("\n"))
        position = match.end()
    return "".join((*kept, text[position:]))


def _without_timestamp(text: str) -> str:
    return _TIMESTAMP.sub("", text[:_TIMESTAMP_WITHIN], count=1) + text[_TIMESTAMP_WITHIN:]


def _without_channel_context(text: str) -> str:
    kept: list[str] = []
    position = 0
    while len(kept) < _MAX_NOTES and (match := _CHANNEL_CONTEXT.search(text, position)) is not None:
        end = text.find("```", match.end())
        if end < 0:
            break
        kept.append(text[position : match.start()])
        after = _SPACE.match(text, end + 3)
        position = after.end() if after is not None else end + 3
    return "".join((*kept, text[position:]))


def is_ephemeral(role: str, text: str) -> bool:
    """Whether a message is a client's addition to one request and not part of the conversation."""
    if role == "user":
        if text.startswith(_EPHEMERAL_STARTS):
            return True
        if text.startswith("<system-reminder>"):
            return not without_spans(text, "<system-reminder>", "</system-reminder>").strip()
        return False
    return role == "system" and text.startswith(_AGENT_NOTES)


def is_poll(text: str) -> bool:
    """Whether a user message comes from the agent's scheduler or another session, not from a person."""
    return text.endswith(_POLL_MARKERS) or "isUser=false" in text


def plain_user_text(text: str) -> str:
    """A user's words without reminders, run-time line, time stamp and channel context; inner white space unchanged.

    >>> plain_user_text("[Sat 2026-11-21 01:00 UTC] And now?")
    'And now?'
    """
    if "<system-reminder>" in text:
        text = without_spans(text, "<system-reminder>", "</system-reminder>")
    if "Runtime: agent=" in text:
        text = _without_runtime_lines(text)
    if text.startswith("["):
        text = _without_timestamp(text)
    if "⟦openclaw:ctx⟧" in text:
        text = _without_timestamp(_without_channel_context(text))
    return text.strip()


def collapse(text: str) -> str:
    """The text with every run of white space replaced by one blank."""
    return " ".join(text.split())


def collapsed_pieces(text: str) -> Iterator[str]:
    """`collapse` as a sequence of pieces, each cheap to compute, that join to the same text."""
    is_begun = is_apart = False
    for position in range(0, len(text), _SLICE):
        piece = text[position : position + _SLICE]
        words = piece.split()
        if words:
            blank = " " if is_begun and (is_apart or piece[0].isspace()) else ""
            yield blank + " ".join(words)
            is_begun = True
        is_apart = piece[-1].isspace() or (is_apart and not words)


def without_thinking(text: str) -> str:
    """A reply without its inline thinking."""
    return without_spans(text, "<think>", "</think>") if "<think>" in text else text


def text_lines(text: str) -> list[str]:
    """The normalized lines of a text: without inline thinking and blank lines, single blanks.

    >>> text_lines("<think>hm</think>Here  it is.\\n\\nDone. ")
    ['Here it is.', 'Done.']
    """
    text = without_thinking(text)
    if "\n" not in text:
        line = " ".join(text.split())
        return [line] if line else []
    return [" ".join(line.split()) for line in _WRITTEN_LINE.findall(text)]


def clipped(text: str, num_chars: int) -> str:
    """The beginning and the end of a long text, `num_chars` together; a short text unchanged."""
    half = num_chars // 2
    return text if len(text) <= num_chars else f"{text[:half]}\n{text[-half:]}"


def summary_core(text: str) -> str:
    """The lines of a summary that clients carry over: without its tags and preliminary analysis."""
    text = without_spans(text, "<analysis>", "</analysis>", instead="\n")
    return "\n".join(text_lines(_SUMMARY_TAGS.sub("\n", text)))
