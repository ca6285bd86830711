"""What a model writes becomes what a client reads: Qwen's `<think>` and `<tool_call>` as OpenAI deltas.

    "<think>\\nhm\\n</think>\\n\\nI look.\\n<tool_call>\\n{"name": "ls", "arguments": {"path": "/"}}\\n</tool_call>"
        │ feed(piece), in pieces of any size              │ finish()
        ▼                                                 ▼
    {"reasoning_content": "hm"}  {"content": "I look."}  {"tool_calls": [{"index": 0, "id": …, …}]}  …

The deltas of a reply do not depend, once added up, on how its text was cut into pieces. Text leaves as
soon as it can no longer be the beginning of a tag or white space that belongs to one.

A tool call is malformed when it has no name or its arguments are not a JSON object: it stays text. Only
`streams_arguments` changes that: there the name leaves as soon as it is known, and the arguments as they
come, so a call that breaks inside its arguments has left already; its arguments then reach the client as
the model wrote them, and the client finds that they are no JSON.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from typing import Any

Delta = dict[str, Any]
"""A piece of an assistant message as OpenAI streams it: `{"content": "Hel"}`."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

# The order in which Qwen writes a call; from here on, what follows are the arguments.
_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.S)
_STRING_END = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["{}\[\]]|</tool_call>')


class _Mode(enum.Enum):
    START = enum.auto()  # only white space so far: `<think>` may follow
    REASONING = enum.auto()
    CONTENT = enum.auto()
    CALL = enum.auto()  # inside a call that is kept back until it is whole
    ARGUMENTS = enum.auto()  # inside a call whose arguments are being streamed
    CALL_TAIL = enum.auto()  # between the end of the arguments and `</tool_call>`


class ReplyParser:
    """Parses one reply; not to be used for a second one.

    Args:
        with_tools: whether calls are looked for; without tools on offer `<tool_call>` is text like any other.
        in_reasoning: whether the prompt has opened `<think>` already.
        tool_call_id: names the n-th call of the reply.
        streams_arguments: send arguments while they are written.

    >>> parser = ReplyParser(with_tools=False)
    >>> parser.feed("<think>hm</think>Hi"), parser.finish()
    ([{'reasoning_content': 'hm'}, {'content': 'Hi'}], [])
    >>> parser.message()
    {'role': 'assistant', 'content': 'Hi', 'reasoning_content': 'hm'}
    """

    def __init__(
        self,
        *,
        with_tools: bool,
        in_reasoning: bool = False,
        tool_call_id: Callable[[int], str] = "call{}".format,
        streams_arguments: bool = False,
    ) -> None:
        self._with_tools = with_tools
        self._tool_call_id = tool_call_id
        self._streams_arguments = streams_arguments
        self._mode = _Mode.REASONING if in_reasoning else _Mode.START
        self._rest = ""  # read, and not yet understood
        self._skips_space = in_reasoning  # at the head of reasoning, of content after it, and after a call
        self._scan = _ObjectScan()
        self._space_before_call = ""  # dropped, unless the call proves malformed
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, arguments in pieces
        self._out: list[Delta] = []

    @property
    def num_tool_calls(self) -> int:
        return len(self._calls)

    def feed(self, text: str) -> list[Delta]:
        """The deltas that `text` completes; none while it may still turn out to be a tag."""
        is_plain = self._mode is _Mode.CONTENT and not self._rest and not self._skips_space and "<" not in text
        if is_plain and text and not (self._with_tools and text[-1].isspace()):  # the common case
            self._content.append(text)
            return [{"content": text}]
        self._rest += text
        while self._rest and self._step():
            pass
        return self._take()

    def finish(self) -> list[Delta]:
        """The deltas of what was kept back; the reply is over."""
        rest, self._rest = self._rest, ""
        if self._mode is _Mode.REASONING:
            self._emit_reasoning(rest.rstrip())
        elif self._mode is _Mode.CALL:
            self._finish_call(rest)
        elif self._mode is _Mode.ARGUMENTS:
            self._emit_arguments(rest)
        elif self._mode in (_Mode.START, _Mode.CONTENT) and not (self._skips_space and not rest.strip()):
            self._emit_content(rest)
        return self._take()

    def message(self) -> dict[str, Any]:
        """The whole reply as an assistant message; `content` is None when there are only tool calls."""
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if self._calls else "")}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
                for call_id, name, arguments in self._calls
            ]
        return message

    # ---- one step of each mode: understand the head of `_rest`, or return False to wait for more

    def _step(self) -> bool:
        match self._mode:
            case _Mode.START:
                return self._step_start()
            case _Mode.REASONING:
                return self._step_reasoning()
            case _Mode.CONTENT:
                return self._step_content()
            case _Mode.CALL:
                return self._step_call()
            case _Mode.ARGUMENTS:
                return self._step_arguments()
            case _Mode.CALL_TAIL:
                return self._step_call_tail()

    def _step_start(self) -> bool:
        head = self._rest.lstrip()
        if head.startswith(THINK_OPEN):
            self._enter(_Mode.REASONING, head[len(THINK_OPEN) :], skips_space=True)
            return True
        if THINK_OPEN.startswith(head):
            return False
        self._mode = _Mode.CONTENT
        return True

    def _step_reasoning(self) -> bool:
        if not self._skip_space():
            return False
        body, tag, rest = self._rest.partition(THINK_CLOSE)
        if tag:
            self._emit_reasoning(body.rstrip())
            self._enter(_Mode.CONTENT, rest, skips_space=True)
            return True
        ready = _safe_length(self._rest, THINK_CLOSE)
        self._emit_reasoning(self._rest[:ready])
        self._rest = self._rest[ready:]
        return False

    def _step_content(self) -> bool:
        if self._skips_space and not self._skip_space():
            return False
        if not self._with_tools:
            self._emit_content(self._rest)
            self._rest = ""
            return False
        body, tag, rest = self._rest.partition(CALL_OPEN)
        if tag:
            self._emit_content(body.rstrip())
            self._space_before_call = body[len(body.rstrip()) :]
            self._scan = _ObjectScan()
            self._enter(_Mode.CALL, rest, skips_space=False)
            return True
        ready = _safe_length(self._rest, CALL_OPEN)
        self._emit_content(self._rest[:ready])
        self._rest = self._rest[ready:]
        return False

    def _step_call(self) -> bool:
        if self._streams_arguments and (head := _CALL_HEAD.match(self._rest)) and (name := _read_name(head[1])):
            self._start_call(name)
            self._scan = _ObjectScan()
            self._enter(_Mode.ARGUMENTS, self._rest[head.end() :], skips_space=False)
            return True
        end = self._scan.find_close(self._rest)
        if end is None:
            return False
        body = self._rest[:end]
        if (call := _read_call(body)) is None:
            self._emit_content(self._space_before_call + CALL_OPEN + body + CALL_CLOSE)
        else:
            self._start_call(call[0])
            self._emit_arguments(call[1])
        self._enter(_Mode.CONTENT, self._rest[end + len(CALL_CLOSE) :], skips_space=call is not None)
        return True

    def _step_arguments(self) -> bool:
        end = self._scan.find_end(self._rest)
        if end is None:
            ready = self._scan.num_read
            self._emit_arguments(self._rest[:ready])
            self._rest = self._rest[ready:]
            self._scan.forget(ready)
            return False
        self._emit_arguments(self._rest[:end])
        self._enter(_Mode.CALL_TAIL, self._rest[end:], skips_space=False)
        return True

    def _step_call_tail(self) -> bool:
        _, tag, rest = self._rest.partition(CALL_CLOSE)
        if not tag:
            return False
        self._enter(_Mode.CONTENT, rest, skips_space=True)
        return True

    # ---- what leaves

    def _enter(self, mode: _Mode, rest: str, *, skips_space: bool) -> None:
        self._mode, self._rest, self._skips_space = mode, rest, skips_space

    def _skip_space(self) -> bool:
        """Drop white space where none belongs; False when nothing else has come yet."""
        if self._skips_space:
            self._rest = self._rest.lstrip()
            self._skips_space = not self._rest
        return bool(self._rest)

    def _finish_call(self, body: str) -> None:
        """The reply ended inside a call: a whole one that only lacks its closing tag counts, half a one is text."""
        if (call := _read_call(body)) is not None:
            self._start_call(call[0])
            self._emit_arguments(call[1])
        else:
            self._emit_content(self._space_before_call + CALL_OPEN + body)

    def _start_call(self, name: str) -> None:
        index = len(self._calls)
        call_id = self._tool_call_id(index)
        self._calls.append((call_id, name, []))
        function = {"name": name, "arguments": ""}
        self._out.append({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._calls[-1][2].append(text)
            index = len(self._calls) - 1
            self._out.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _emit_content(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._out.append({"content": text})

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._out.append({"reasoning_content": text})

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out


class _ObjectScan:
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
        self.num_read = len(text) if self._in_string else max(position, len(text) - _overlap(text, CALL_CLOSE))
        return None


def _overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that is a beginning of `tag`, the whole tag left aside."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def _safe_length(text: str, tag: str) -> int:
    """How much of `text` can be neither a beginning of `tag` nor white space in front of it."""
    return len(text[: len(text) - _overlap(text, tag)].rstrip())


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


def _read_name(literal: str) -> str:
    """The string behind a JSON string literal; empty when it is none."""
    try:
        return str(_loads(literal))
    except ValueError:
        return ""


def _read_call(body: str) -> tuple[str, str] | None:
    """Name and arguments of a whole call; None when it is malformed.

    Arguments keep the spelling of the model when they stand where Qwen puts them. The last brace, which
    small models forget, is forgiven.
    """
    if head := _CALL_HEAD.match(body):
        end = _ObjectScan().find_end(body[head.end() :]) or 0
        arguments, tail = body[head.end() :][:end], body[head.end() :][end:].strip()
        if tail in ("", "}") and _is_object(arguments) and (name := _read_name(head[1])):
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
