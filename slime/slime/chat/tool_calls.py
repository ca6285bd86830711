"""One tool call as Qwen writes it: where it ends in a text that grows, and what it says.

{"name": "ls", "arguments": {"path": "/"}}
└─ CALL_HEAD ──────────────┘└ ObjectScan ┘   ─▶ read_call ─▶ ("ls", '{"path": "/"}')
"""

from __future__ import annotations

import json
import re
from typing import Any

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

# The order in which Qwen writes a call; from here on, what follows are the arguments.
CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.S)
_STRING_END = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["{}\[\]]|</tool_call>')


class ObjectScan:
    """Finds the end of a JSON object in a text that grows, reading each character once.

    It follows strings and brackets only, so that a tag inside a string is no tag; whether the object is
    sound is for the JSON parser to say.
    """

    def __init__(self) -> None:
        self.num_read = 0
        self._depth = 0
        self._in_string = False

    def forget(self, count: int) -> None:
        """The first `count` characters were taken away from the text."""
        self.num_read -= count

    def find_end(self, text: str) -> int | None:
        """Where the object ends (after its last brace), or where a closing tag cuts it short."""
        return self._advance(text, stops_at_end=True)

    def find_close(self, text: str) -> int | None:
        """Where the closing tag begins that stands outside any string."""
        return self._advance(text, stops_at_end=False)

    def _advance(self, text: str, *, stops_at_end: bool) -> int | None:
        position = self.num_read
        while True:
            found = (_STRING_END if self._in_string else _STRUCTURE).search(text, position)
            if found is None:
                break
            position = found.end()
            if self._in_string and found[0] == "\\":
                if position == len(text):  # the escaped character has not come yet: read the backslash again
                    self.num_read = found.start()
                    return None
                position += 1
            elif found[0] == '"':
                self._in_string = not self._in_string
            elif found[0] == CALL_CLOSE:
                return found.start()
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if stops_at_end and self._depth <= 0:
                    return position
            self.num_read = position
        # A tag may be cut in two: keep its beginning for the next look.
        self.num_read = len(text) if self._in_string else max(position, len(text) - overlap(text, CALL_CLOSE))
        return None


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that is a beginning of `tag`, the whole tag left aside."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def _loads(text: str) -> Any:
    """JSON as a client's parser will read it: no NaN, no text that is no Unicode. Raises ValueError."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text, strict=False, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is a UnicodeEncodeError, hence a ValueError
    return value


def read_name(literal: str) -> str:
    """The string behind a JSON string literal; empty when it is none."""
    try:
        return str(_loads(literal))
    except ValueError:
        return ""


def read_call(body: str) -> tuple[str, str] | None:
    """Name and arguments of a whole call; None when it is malformed.

    Arguments keep the spelling of the model when they stand where Qwen puts them. The last brace, which
    small models forget, is forgiven.
    """
    if head := CALL_HEAD.match(body):
        end = ObjectScan().find_end(body[head.end() :]) or 0
        arguments, tail = body[head.end() :][:end], body[head.end() :][end:].strip()
        if tail in ("", "}") and _is_object(arguments) and (name := read_name(head[1])):
            return name, arguments
    try:
        call = _loads(body)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    given = call.get("arguments", call.get("parameters", {}))
    if isinstance(given, str) and _is_object(given):  # some models write the object as a string
        return call["name"], given
    return (call["name"], json.dumps(given, ensure_ascii=False)) if isinstance(given, dict) else None


def _is_object(text: str) -> bool:
    """Whether `text` is a JSON object to the letter, so that it may be sent on as it stands."""
    try:
        json.loads(text)  # strict: a raw line break inside a string is refused here, and mended by the caller
        return isinstance(_loads(text), dict)
    except (ValueError, RecursionError):
        return False
