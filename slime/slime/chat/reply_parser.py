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

from collections.abc import Callable, Generator, Iterator
from typing import Any

from slime.chat.tool_calls import CALL_CLOSE, CALL_HEAD, CALL_OPEN, ObjectScan, overlap, read_call, read_name

Delta = dict[str, Any]
"""A piece of an assistant message as OpenAI streams it: `{"content": "Hel"}`."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


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
        self._rest = ""  # read, and not yet understood
        self._is_over = False
        self._in_content = False  # where text without a tag may leave as it comes
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name, arguments in pieces
        self._out: list[Delta] = []
        self._grammar = self._read_reply(in_reasoning)

    @property
    def num_tool_calls(self) -> int:
        return len(self._calls)

    def feed(self, text: str) -> list[Delta]:
        """The deltas that `text` completes; none while it may still turn out to be a tag."""
        is_plain = self._in_content and not self._rest and "<" not in text
        if is_plain and text and not (self._with_tools and text[-1].isspace()):  # the common case
            self._content.append(text)
            return [{"content": text}]
        self._rest += text
        return self._advance()

    def finish(self) -> list[Delta]:
        """The deltas of what was kept back; the reply is over."""
        self._is_over = True
        return self._advance()

    def _advance(self) -> list[Delta]:
        next(self._grammar, None)
        out, self._out = self._out, []
        return out

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

    # ---- the grammar: a generator for each rule takes its text off `_rest`, and yields where it needs more

    def _read_reply(self, in_reasoning: bool) -> Iterator[None]:
        """A thought, or none; then text and calls."""
        if in_reasoning or (yield from self._opens_thought()):
            yield from self._read_thought()
        while not self._is_over or self._rest:
            yield from self._read_content()

    def _opens_thought(self) -> Generator[None, None, bool]:
        while not self._is_over:
            head = self._rest.lstrip()
            if head.startswith(THINK_OPEN):
                self._rest = head[len(THINK_OPEN) :]
                return True
            if not THINK_OPEN.startswith(head):
                break
            yield
        return False

    def _read_thought(self) -> Iterator[None]:
        yield from self._skip_space()
        while THINK_CLOSE not in self._rest and not self._is_over:
            self._emit_reasoning(self._take(_safe_length(self._rest, THINK_CLOSE)))
            yield
        body, _, self._rest = self._rest.partition(THINK_CLOSE)
        self._emit_reasoning(body.rstrip())
        yield from self._skip_space()

    def _read_content(self) -> Iterator[None]:
        """Text up to a call, and the call."""
        body, tag, rest = self._rest.partition(CALL_OPEN) if self._with_tools else (self._rest, "", "")
        if tag:
            text, self._rest = body.rstrip(), rest
            self._emit_content(text)
            yield from self._read_call(body[len(text) :])
            return
        is_whole = self._is_over or not self._with_tools
        self._emit_content(self._take(len(body) if is_whole else _safe_length(body, CALL_OPEN)))
        if not self._is_over:
            self._in_content = True
            yield
            self._in_content = False

    def _read_call(self, space_before: str) -> Iterator[None]:
        """A call that is kept back until it is whole; white space before it stays if it proves malformed.

        Where the reply ends inside it, a whole one that only lacks its closing tag counts.
        """
        scan = ObjectScan()
        while True:
            if self._streams_arguments and (head := CALL_HEAD.match(self._rest)) and (name := read_name(head[1])):
                self._take(head.end())
                yield from self._read_arguments(name)
                return
            end = scan.find_close(self._rest)
            if end is not None or self._is_over:
                break
            yield
        body, tag = self._take(end), self._take(len(CALL_CLOSE))
        if (call := read_call(body)) is None:
            self._emit_content(space_before + CALL_OPEN + body + tag)
        else:
            self._start_call(call[0])
            self._emit_arguments(call[1])
            yield from self._skip_space()

    def _read_arguments(self, name: str) -> Iterator[None]:
        """The arguments of a call while they are written, up to `</tool_call>`."""
        self._start_call(name)
        scan = ObjectScan()
        while (end := scan.find_end(self._rest)) is None and not self._is_over:
            ready = scan.num_read
            self._emit_arguments(self._take(ready))
            scan.forget(ready)
            yield
        self._emit_arguments(self._take(end))
        while CALL_CLOSE not in self._rest and not self._is_over:
            yield
        _, _, self._rest = self._rest.partition(CALL_CLOSE)
        yield from self._skip_space()

    def _skip_space(self) -> Iterator[None]:
        """Drop white space at the head of reasoning, of content after it, and after a call."""
        while not self._is_over:
            self._rest = self._rest.lstrip()
            if self._rest:
                return
            yield

    def _take(self, length: int | None) -> str:
        """The head of what is not yet understood; all of it where no length is known."""
        head = self._rest[:length]
        self._rest = self._rest[len(head) :]
        return head

    # ---- what leaves

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


def _safe_length(text: str, tag: str) -> int:
    """How much of `text` can be neither a beginning of `tag` nor white space in front of it."""
    return len(text[: len(text) - overlap(text, tag)].rstrip())
