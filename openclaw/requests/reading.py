"""Computes the keys of a request: digests that are equal for equal conversations.

A key covers what both sides keep of a conversation: the text of user and assistant messages and the ids of tool calls.
It ignores what changes within a session: system prompt, tools, notes and reminders of the client, the text of tool
results (clients truncate them later), white space and the order of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from zlib import crc32

from slime.types import Message

from openclaw.requests.canonical import CanonicalMessage, CanonicalRequest
from openclaw.requests.plain_text import (
    clipped,
    collapse,
    collapsed_pieces,
    is_ephemeral,
    plain_user_text,
    text_lines,
    without_thinking,
)
from openclaw.requests.slices import in_slices

KEPT_TEXT = 2000  # characters of a text that are compared
SEARCHED_TEXT = 65_536  # characters of user text that are searched for replies and user messages
_REMEMBERED_TEXT, _NUM_REMEMBERED = 2_048, 4_096  # characters, texts: a request repeats its history word for word
_SYSTEM_HEAD = 256  # characters that identify the agent; dates and snapshots follow later


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=12).digest()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def forward_keys(lines: Sequence[str]) -> Iterator[bytes]:
    """Keys of the first line, the first two lines, …; the last is the key of the whole text."""
    running = blake2b(digest_size=12)
    for line in lines:
        running.update(_encode(line) + b"\n")
        yield running.digest()


def backward_keys(lines: Sequence[str]) -> Iterator[bytes]:
    """Keys of the last line, the last two lines, …"""
    running = blake2b(b"backward\n", digest_size=12)
    for line in reversed(lines):
        running.update(_encode(line) + b"\n")
        yield running.digest()


def whole_key(lines: Sequence[str]) -> bytes:
    """The last of `forward_keys`, computed at once."""
    return _digest(_encode("\n".join(lines)) + b"\n")


def calls_key(message: Message) -> bytes | None:
    """A key of an assistant message's tool calls by name and arguments, for clients that assign new ids.

    Clients re-serialize arguments (`30.0` → `30`, white space, escapes), so they are compared as values.
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
    except (ValueError, RecursionError):  # malformed, or nested too deeply: compared as text
        return collapse(written)


def _number(digits: str) -> int | float:
    value = float(digits)
    return int(value) if value.is_integer() else value


def _text_and_ids(message: CanonicalMessage) -> tuple[str, str]:
    """What is compared of a message besides its role: a text, and ids."""
    if message.role == "assistant":
        return message.text, "\x1f" + " ".join(message.call_ids)
    if message.role == "tool" and message.call_ids:
        return "", message.call_ids[0]
    return message.text, ""


def _plain(role: str, text: str) -> tuple[str, str]:
    """A mark of the role, and the text as both sides keep it; empty for a note."""
    if role == "assistant":
        return "\x1ea", without_thinking(text)
    if role == "tool":
        return "\x1et", text
    if role != "user" or is_ephemeral(role, text):
        return "", ""
    return "\x1eu", plain_user_text(text)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _remembered_part(role: str, text: str) -> tuple[str, bytes]:
    mark, plain = _plain(role, text)
    return plain, _encode(mark + collapse(plain))


def lines_and_key(text: str) -> tuple[Sequence[str], bytes]:
    """The normalized lines of a reply and their `whole_key`."""
    if len(text) <= _REMEMBERED_TEXT:
        return _remembered_lines(text)
    lines = text_lines(text)
    return lines, whole_key(lines)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _remembered_lines(text: str) -> tuple[Sequence[str], bytes]:
    lines = tuple(text_lines(text))
    return lines, whole_key(lines)


class Reading:
    """The texts and keys of one request.

    Attributes:
        messages: the canonical conversation without the leading system prompt.
        first_user, last_user: the first and the newest user message that is not ephemeral, as normalized lines.
        raw_first_user: the first one as received.
        has_assistant: whether it contains an assistant message.
    """

    def __init__(self, request: CanonicalRequest) -> None:
        self._open(request)
        for _ in self._read():
            pass

    @classmethod
    async def in_slices(cls, request: CanonicalRequest, num_bytes: int) -> Reading:
        """Read a request in slices: yields to the event loop every few milliseconds."""
        reading = cls.__new__(cls)
        reading._open(request)
        await in_slices(reading._read(), num_bytes)
        return reading

    def _open(self, request: CanonicalRequest) -> None:
        self.request = request
        self.messages = request.messages
        self.raw_first_user = ""
        self.first_assistant = len(self.messages)
        self._user_texts: dict[int, str] = {}
        self._parts: list[bytes] = []

    def _read(self) -> Iterator[None]:
        """Read the messages one by one; yields where other tasks may run."""
        for position, message in enumerate(self.messages):
            text, ids = _text_and_ids(message)
            if len(text) <= _REMEMBERED_TEXT:
                plain, part = _remembered_part(message.role, text)
            else:
                mark, plain = _plain(message.role, text)
                pieces = [mark]
                for piece in collapsed_pieces(plain) if mark else ():
                    pieces.append(piece)
                    yield
                part = _encode("".join(pieces))
            self._parts.append(part + _encode(ids) if ids else part)
            if message.role == "assistant":
                self.first_assistant = min(self.first_assistant, position)
            elif message.role == "user" and part:
                self.raw_first_user = self.raw_first_user or message.text
                self._user_texts[position] = plain
            yield
        self.request_key = _digest(b"".join(self._parts))
        self.root_key = _digest(b"".join(self._parts[: self.first_assistant]))

    @cached_property
    def num_kept(self) -> int:
        """The number of messages that are part of the conversation: neither notes nor reminders."""
        return sum(map(bool, self._parts))

    @property
    def has_assistant(self) -> bool:
        return self.first_assistant < len(self.messages)

    @cached_property
    def shape(self) -> int:
        """A checksum of model, head of the system prompt and number of tools: roughly identifies the agent."""
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
        """All user text, collapsed; the beginning and the end of very long text."""
        texts, size = list(self._user_texts.values()), 0
        for count, text in enumerate(texts, start=1):
            size += len(text)
            if size > SEARCHED_TEXT:
                return collapse(clipped("\n".join(_ends(texts, count)), SEARCHED_TEXT))
        return collapse("\n".join(texts))

    @cached_property
    def _keys(self) -> list[bytes]:
        """The request key of the conversation up to, but not including, each position."""
        running, keys = blake2b(digest_size=12), []
        for part in self._parts:
            keys.append(running.digest())
            running.update(part)
        return [*keys, running.digest()]

    @cached_property
    def _kept_ends(self) -> list[int]:
        """The end positions of the first kept message, the second, …"""
        return [0, *(position for position, part in enumerate(self._parts, start=1) if part)]

    def key_before(self, position: int) -> bytes:
        """The request key of the conversation up to, but not including, a position."""
        return self._keys[position]

    def user_before(self, position: int) -> str:
        """The newest kept user message before a position, as `last_user`; empty if there is none."""
        for earlier in range(position - 1, -1, -1):
            if earlier in self._user_texts:
                return self._compared(self._user_texts[earlier])
        return ""

    def user_text(self, position: int) -> str:
        """The plain text of the user message at a position; empty if it is ephemeral or not a user's."""
        return self._user_texts.get(position, "")

    @staticmethod
    def _compared(plain: str) -> str:
        return "\n".join(text_lines(plain[:KEPT_TEXT]))

    def starts_with_request(self, key: bytes, num_kept: int) -> bool:
        """Whether the kept messages start with those of an earlier request and continue after them."""
        return num_kept < self.num_kept and self._keys[self._kept_ends[num_kept]] == key


def _ends(texts: list[str], count: int) -> list[str]:
    """The first `count` texts and as many of the last ones as are searched, each clipped to its ends."""
    last: list[str] = []
    size = 0
    for text in reversed(texts[count:]):
        last.append(clipped(text, SEARCHED_TEXT))
        size += len(last[-1])
        if size > SEARCHED_TEXT:
            break
    return [*(clipped(text, SEARCHED_TEXT) for text in texts[:count]), *reversed(last)]
