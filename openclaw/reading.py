"""A request as matching reads it: its canonical messages and the keys by which equal conversations are equal.

A key covers what both sides keep of a conversation: the words of people and of assistant messages and the ids of tool
calls. It leaves out what changes inside one session: system prompt, tools, notes and reminders of the client, the text
of tool results (clients shorten them later), white space and the order of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any
from zlib import crc32

from slime.types import Message

from openclaw.dialects import CanonicalMessage, read_request
from openclaw.plain_text import collapse, is_ephemeral, plain_user_text, text_lines

KEPT_TEXT = 2000  # characters of a text that are compared
_SYSTEM_HEAD = 256  # names the agent; dates and snapshots stand further down


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=12).digest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def forward_keys(lines: list[str]) -> Iterator[bytes]:
    """Keys of the first line, the first two lines, …; the last one is the key of the whole text."""
    running = blake2b(digest_size=12)
    for line in lines:
        running.update(_encode(line) + b"\n")
        yield running.digest()


def backward_keys(lines: list[str]) -> Iterator[bytes]:
    """Keys of the last line, the last two lines, …"""
    running = blake2b(b"backward\n", digest_size=12)
    for line in reversed(lines):
        running.update(_encode(line) + b"\n")
        yield running.digest()


def whole_key(lines: list[str]) -> bytes:
    """The last of `forward_keys`, in one go."""
    return _digest(_encode("\n".join(lines)) + b"\n")


def calls_key(message: Message) -> bytes | None:
    """A key of the tool calls in an assistant message by name and value, for clients that give them new ids.

    Clients write arguments anew (`30.0` → `30`, white space, escapes), so they are compared as values.
    """
    calls = [call.get("function") or {} for call in message.get("tool_calls") or () if isinstance(call, dict)]
    if not calls:
        return None
    written = "\x1e".join(f"{call.get('name')}\x1f{_arguments(call.get('arguments'))}" for call in calls)
    return _digest(b"calls\n" + _encode(written))


def _arguments(written: object) -> str:
    if not isinstance(written, str):
        return ""
    try:
        return json.dumps(json.loads(written, parse_float=_number), sort_keys=True)
    except ValueError:  # our own broken call: compared as it stands
        return collapse(written)


def _number(digits: str) -> int | float:
    value = float(digits)
    return int(value) if value.is_integer() else value


class Reading:
    """One request, read once.

    Attributes:
        messages: the canonical conversation without the leading system prompt.
        first_user, last_user: the first and the newest message a user wrote to stay, plain, one line a line.
        raw_first_user: the first one as it came.
        has_assistant: whether anybody's reply stands in it.
    """

    def __init__(self, endpoint: str, body: Mapping[str, Any]) -> None:
        self.request = read_request(endpoint, body)
        self.messages = self.request.messages
        self.raw_first_user = ""
        self.first_assistant = len(self.messages)
        self._user_texts: dict[int, str] = {}
        self._parts = [self._part(position, message) for position, message in enumerate(self.messages)]
        self._kept = [part for part in self._parts if part]
        self.request_key = _digest(b"".join(self._parts))
        self.root_key = _digest(b"".join(self._parts[: self.first_assistant]))

    def _part(self, position: int, message: CanonicalMessage) -> bytes:
        role, text = message.role, message.text
        if role == "assistant":
            self.first_assistant = min(self.first_assistant, position)
            return _encode(f"\x1ea{' '.join(text_lines(text))}\x1f{' '.join(message.call_ids)}")
        if role == "tool":
            return _encode(f"\x1et{message.call_ids[0] if message.call_ids else collapse(text)}")
        if role != "user" or is_ephemeral(role, text):
            return b""
        plain = plain_user_text(text)
        self.raw_first_user = self.raw_first_user or text
        self._user_texts[position] = plain
        return _encode(f"\x1eu{collapse(plain)}")

    @property
    def num_kept(self) -> int:
        """How many messages are part of the conversation: neither notes nor reminders."""
        return len(self._kept)

    @property
    def has_assistant(self) -> bool:
        return self.first_assistant < len(self.messages)

    @cached_property
    def shape(self) -> int:
        """Model, head of the system prompt and number of tools: which agent speaks, roughly."""
        request = self.request
        head = f"{request.model}\x1f{request.num_tools}\x1f{request.system[:_SYSTEM_HEAD]}"
        return crc32(_encode(head))

    @cached_property
    def first_user(self) -> str:
        return self._compared(next(iter(self._user_texts.values()), ""))

    @cached_property
    def last_user(self) -> str:
        return self._compared(next(reversed(self._user_texts.values()), ""))

    @cached_property
    def all_user_text(self) -> str:
        """Everything users wrote, collapsed."""
        return collapse("\n".join(self._user_texts.values()))

    def key_before(self, position: int) -> bytes:
        """The request key of the conversation up to, but not including, a position."""
        return _digest(b"".join(self._parts[:position]))

    def user_before(self, position: int) -> str:
        """The newest message a user wrote to stay before a position, as `last_user`; empty when there is none."""
        for earlier in range(position - 1, -1, -1):
            if earlier in self._user_texts:
                return self._compared(self._user_texts[earlier])
        return ""

    def user_text(self, position: int) -> str:
        """The plain text of the user message at a position; empty when no user wrote it to stay."""
        return self._user_texts.get(position, "")

    @staticmethod
    def _compared(plain: str) -> str:
        return "\n".join(text_lines(plain[:KEPT_TEXT]))

    def starts_with_request(self, key: bytes, num_kept: int) -> bool:
        """Whether the messages that stay begin with those of an earlier request, and go on after them."""
        return num_kept < len(self._kept) and _digest(b"".join(self._kept[:num_kept])) == key
