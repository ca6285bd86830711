"""What people and models wrote, without what clients wrap around it.

Clients add time stamps, reminders, run-time lines and whole messages that live for one request only, and take them
away again later. Two texts that mean the same message must compare equal here, whichever of that stood around them.
"""

from __future__ import annotations

import re

# A message that starts with one of these is put at the end of one request and is gone in the next.
_EPHEMERAL_STARTS = (
    "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>",
    "<environment_context>",
    "<user_instructions>",
)
# Notes that an agent puts between the messages as role `system`: what people say arrives there too (a message typed
# while the agent works), so only the known kinds of note are dropped.
_AGENT_NOTES = (
    "Available agent types",
    "The following skills are available",
    "The task tools haven't been used",
    "The TodoWrite tool hasn't been used",
    "Called the ",
    "Result of calling the ",
)
# What is left in the history of a request that the agent made by itself.
_POLL_MARKERS = ("[OpenClaw heartbeat poll]", "[OpenClaw cron wake]")

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_THINK = re.compile(r"<think>.*?</think>", re.DOTALL)
_RUNTIME_LINE = re.compile(r"\n*Runtime: agent=\S+ \| session=[^\n]*")
_TIMESTAMP = re.compile(r"\[[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d[^\]]*\] ")
_CHANNEL_CONTEXT = re.compile(r"Conversation info: ⟦openclaw:ctx⟧\s*```json.*?```\s*", re.DOTALL)
_SUMMARY_TAGS = re.compile(r"<analysis>.*?</analysis>|</?(?:summary|analysis)>", re.DOTALL)


def is_ephemeral(role: str, text: str) -> bool:
    """Whether a message is a client's own, for one request only, and no part of the conversation."""
    if role == "user":
        if text.startswith(_EPHEMERAL_STARTS):
            return True
        if text.startswith("<system-reminder>"):
            return not _REMINDER.sub("", text).strip()
        return False
    return role == "system" and text.startswith(_AGENT_NOTES)


def is_poll(text: str) -> bool:
    """Whether a user message was written by the agent's own clock or by another session, not by a person."""
    return text.endswith(_POLL_MARKERS) or "isUser=false" in text


def plain_user_text(text: str) -> str:
    """A user's words without reminders, run-time line, time stamp and channel context; white space as it was.

    >>> plain_user_text("[Sat 2026-11-21 01:00 UTC] And now?")
    'And now?'
    """
    if "<system-reminder>" in text:
        text = _REMINDER.sub("", text)
    if "Runtime: agent=" in text:
        text = _RUNTIME_LINE.sub("", text)
    if text.startswith("["):
        text = _TIMESTAMP.sub("", text, count=1)
    if "⟦openclaw:ctx⟧" in text:
        text = _CHANNEL_CONTEXT.sub("", text)
        text = _TIMESTAMP.sub("", text, count=1)
    return text.strip()


def collapse(text: str) -> str:
    """The text with every run of white space made one blank."""
    return " ".join(text.split())


def text_lines(text: str) -> list[str]:
    """The lines of a text that compare: no inline thinking, no blank lines, single blanks.

    >>> text_lines("<think>hm</think>Here  it is.\\n\\nDone. ")
    ['Here it is.', 'Done.']
    """
    if "<think>" in text:
        text = _THINK.sub("", text)
    if "\n" not in text:
        line = " ".join(text.split())
        return [line] if line else []
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return [line for line in lines if line]


def summary_core(text: str) -> str:
    """The lines of a summary that a client carries on: without its tags and its preliminary analysis."""
    return "\n".join(text_lines(_SUMMARY_TAGS.sub("\n", text)))
