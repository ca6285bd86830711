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
from collections.abc import Callable
from typing import Any

from slime.chat.tool_calls import CALL_CLOSE, CALL_HEAD, CALL_OPEN, ObjectScan, overlap, read_call, read_name

Delta = dict[str, Any]
"""A piece of an assistant message as OpenAI streams it: `{"content": "Hel"}`."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


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
        self._scan = ObjectScan()
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
            self._scan = ObjectScan()
            self._enter(_Mode.CALL, rest, skips_space=False)
            return True
        ready = _safe_length(self._rest, CALL_OPEN)
        self._emit_content(self._rest[:ready])
        self._rest = self._rest[ready:]
        return False

    def _step_call(self) -> bool:
        if self._streams_arguments and (head := CALL_HEAD.match(self._rest)) and (name := read_name(head[1])):
            self._start_call(name)
            self._scan = ObjectScan()
            self._enter(_Mode.ARGUMENTS, self._rest[head.end() :], skips_space=False)
            return True
        end = self._scan.find_close(self._rest)
        if end is None:
            return False
        body = self._rest[:end]
        if (call := read_call(body)) is None:
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
        if (call := read_call(body)) is not None:
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


def _safe_length(text: str, tag: str) -> int:
    """How much of `text` can be neither a beginning of `tag` nor white space in front of it."""
    return len(text[: len(text) - overlap(text, tag)].rstrip())
