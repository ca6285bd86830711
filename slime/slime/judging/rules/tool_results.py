"""Reads from a tool's result whether the call that caused it failed.

    tool message ─┬─ is_error, exit_code, error, status, success: typed fields ─┐
                  ├─ "Command exited with code 2": the line of a shell's harness ├─▶ −1, or nothing
                  └─ a text that is an error message and nothing else ──────────┘

Nothing in a result is praise. The policy chooses what a tool prints: it can echo "ok", read a file that says "success"
and start a sub-agent that lauds itself, and would be trained to. A failure is believed only where it is the whole
result, since a log that mentions errors is what was asked for; of a call that reads or prints text, only typed fields
and the reader's own complaint ("cat: x: No such file or directory") count.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from slime.judging.llm.prompts import message_text, shorten
from slime.judging.rules.forms import Evidence, forms
from slime.types import Message

MAX_CHARS = 4000
"""How much of one result is read."""

ERROR_LINES = 2
"""A text of more lines is output in which errors occur, unless it is a traceback from beginning to end."""

_BAD_STATUS = frozenset({"error", "failed", "failure", "invalid", "denied", "not_found"})
_EXIT_KEYS = ("exit_code", "exitCode", "returncode")
_EXIT_LINE = re.compile(
    r"(?:the )?(?:command |process |program )?(?:exit(?:ed)?|terminated|returned)(?: with)?(?: exit)?(?: code| status)?"
    r":? ?(-?\d{1,10})\.?",
    re.IGNORECASE,
)


def read_tool_result(message: Message, call: tuple[str, str] | None = None) -> Evidence | None:
    """The failure that a tool message reports, if it does.

    >>> read_tool_result({"role": "tool", "content": "bash: pytset: command not found"})
    Evidence(score=-1, kind='tool error', words='bash: pytset: command not found')

    Args:
        call: name and arguments of the call it answers, where they are known.
    """
    text = message_text(message)
    told = shorten(text, MAX_CHARS).strip()
    if forms().tool_outage.search(told.lower()):
        return None
    is_reading = call is not None and reads_text(*call)
    if _fields_say_failure(message, is_envelope=True) or _is_failed_object(text, is_reading):
        return Evidence(-1, "tool error", told)
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    if not lines:
        return None
    if is_reading:
        failed = len(lines) <= ERROR_LINES and forms().reader_error.fullmatch(lines[0]) is not None
    else:
        failed = any(_is_failed_exit(line) for line in (lines[0], lines[-1])) or _is_error_message(lines)
    return Evidence(-1, "tool error", lines[0][:200]) if failed else None


def relayed(text: str) -> str | None:
    """What a tool printed, where a client without tool messages hands it over as the user's; else None.

    >>> relayed("Observation: 12 passed")
    ' 12 passed'
    """
    mark = forms().relayed.match(text)
    return None if mark is None else text[mark.end() :]


def reads_text(name: str, arguments: str) -> bool:
    """Whether a call prints what stands somewhere, or what it was told: errors in there are not its own.

    >>> reads_text("exec", '{"command": "cd app && tail -n 5 build.log"}')
    True
    """
    if forms().reading_tool.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:200]).lower()):
        return True
    try:
        values = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return False
    command = next((values[key] for key in ("command", "cmd", "script") if key in values), "") if values else ""
    words = " ".join(command) if isinstance(command, list) else str(command)
    programs = [part.split()[:1] for part in re.split(r"[|;&\n]+", words[:MAX_CHARS])]
    return any(program and program[0].rpartition("/")[2] in forms().readers for program in programs)


def _is_failed_object(text: str, is_reading: bool) -> bool:
    """Whether it is a JSON object whose customary fields say that the call failed."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and _fields_say_failure(value, is_envelope=is_reading)


def _fields_say_failure(value: dict[str, Any], is_envelope: bool) -> bool:
    """An envelope has fields that no document has; of a result that is data, the looser ones count too."""
    if value.get("is_error") is True or value.get("isError") is True:
        return True
    if any(_is_number(value.get(key)) and value[key] != 0 for key in _EXIT_KEYS):
        return True
    if is_envelope:
        return False
    code = value.get("code")
    return (
        bool(value.get("error"))
        or value.get("success") is False
        or value.get("ok") is False
        or str(value.get("status", "")).lower() in _BAD_STATUS
        or (_is_number(code) and code not in (0, 200, 201, 202, 204))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_failed_exit(line: str) -> bool:
    match = _EXIT_LINE.fullmatch(line)
    return match is not None and int(match[1]) != 0


def _is_error_message(lines: list[str]) -> bool:
    if lines[0].lower() == "traceback (most recent call last):":
        return re.match(r"[\w.]*(?:Error|Exception|Interrupt|Exit)\b", lines[-1]) is not None
    first = lines[0].lower().replace("’", "'")
    return len(lines) <= ERROR_LINES and forms().tool_error.match(first) is not None
