"""Reader of conversation files: JSON and JSON lines, validated before any of it is used.

    talks.json · talks.jsonl · a directory of both ─▶ Conversation ─▶ RecordedTurn: request, reply, what followed

A file holds one object a line (`.jsonl`), or one object or a list of them (`.json`). A conversation is written in one
of two ways:

    {"session_id": "s1", "turns": [
        {"type": "main", "prompt": "Hi", "response": "Hello!", "next_state": "thanks", "trainable": true},
        {"type": "side", "prompt": "Title?", "response": "Greeting", "trainable": false}]}

    {"session_id": "s2", "messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "thanks"}]}

Where the first has a text, a message or a list of messages may stand. A `prompt` that is a text goes on from the main
turns before it; a list of messages is the whole request, unless `"goes_on": true`. What followed a reply is its
`next_state` or, where none is written, what the next main turn's prompt adds. Lines that `openclaw-rl export` wrote
carry what else was known of a turn, its ids and log-probs among it, as its `record`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slime.errors import ConfigError, RequestError, nearest
from slime.messages import read_message
from slime.types import Message

SUFFIXES = (".json", ".jsonl")
_SESSION_KEYS = ("session_id", "turns", "messages", "tools", "source", "metadata")
_TURN_KEYS = ("type", "prompt", "response", "next_state", "trainable", "goes_on", "tools", "record", "metadata")
_TYPES = {"main": True, "main_line": True, "side": False}
_BETWEEN_VALUES = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One reply of a conversation, with the whole request it answers.

    >>> RecordedTurn(({"role": "user", "content": "Hi"},), {"role": "assistant", "content": "Hello!"},
    ...              ({"role": "user", "content": "thanks"},), is_trainable=True)

    Attributes:
        next_state: the messages that followed; None where the conversation ends.
        record: everything else that was known of it when it was exported; see `tools.transfer`.
    """

    messages: tuple[Message, ...]
    reply: Message
    next_state: tuple[Message, ...] | None
    is_trainable: bool
    tools: tuple[dict[str, Any], ...] = ()
    record: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The main turns of one session, in order; side turns are left out, but for those with a record.

    Attributes:
        source: whose conversation it is (baselines are kept per source); empty where the file does not say.
        place: where it stands, for messages: `talks.jsonl:3`.
        num_side: how many side turns were left out.
    """

    session_id: str
    turns: tuple[RecordedTurn, ...]
    source: str
    place: str
    num_side: int = 0


def conversation_files(path: Path) -> list[Path]:
    """The files that a path means: itself, or what a directory holds at any depth, in the order of their names.

    Raises:
        ConfigError: there is none.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        if not found:
            raise ConfigError(f"{path}: no {' or '.join(SUFFIXES)} file in this directory")
        return found
    if not path.is_file():
        raise ConfigError(f"{path}: no such file or directory")
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: conversations are read from {' or '.join(SUFFIXES)} files")
    return [path]


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Every conversation of a file or directory, one at a time.

    Raises:
        ConfigError: the first thing that is not understood, with its file and line.
    """
    for file in conversation_files(path):
        for line, value in _objects(file):
            yield parse_conversation(value, f"{file}:{line}")


# ── Files to objects ───────────────────────────────────────────────────────────────────────────────────────────────


def _objects(file: Path) -> Iterator[tuple[int, Any]]:
    """Each JSON object of a file with the line it begins on."""
    try:
        with file.open(encoding="utf-8") as text:
            yield from _of_lines(text, file) if file.suffix == ".jsonl" else _of_whole(text.read(), file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from None


def _of_lines(lines: Iterable[str], file: Path) -> Iterator[tuple[int, Any]]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            yield number, _parsed(text, f"{file}:{number}")


def _of_whole(text: str, file: Path) -> Iterator[tuple[int, Any]]:
    whole = _parsed(text, str(file))
    is_list = isinstance(whole, list)
    line, counted, end = 1, 0, text.index("[") + 1 if is_list else 0
    for value in whole if is_list else [whole]:  # it is sound; now once more, for the line on which each value begins
        gap = _BETWEEN_VALUES.match(text, end)
        start = end if gap is None else gap.end()
        line, counted = line + text.count("\n", counted, start), start
        yield line, value
        _, end = json.JSONDecoder().raw_decode(text, start)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place if text.count("\n") <= 1 else f"{place}:{error.lineno}"
        raise ConfigError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ConfigError(f"{place}: not a conversation: nested too deeply") from None


# ── Objects to conversations ───────────────────────────────────────────────────────────────────────────────────────


def parse_conversation(value: Any, place: str) -> Conversation:
    """The conversation that a JSON object is. Raises ConfigError, which begins with `place`."""
    _check_keys(value, _SESSION_KEYS, place)
    if ("turns" in value) == ("messages" in value):
        raise ConfigError(f'{place}: a conversation has either "turns" or "messages"')
    tools = _tools(value.get("tools"), place)
    if "turns" in value:
        turns, num_side = _from_turns(_list(value["turns"], f"{place}: turns"), tools, place)
    else:
        messages = [
            _message(m, f"{place}: message {i}")
            for i, m in enumerate(_list(value["messages"], f"{place}: messages"), 1)
        ]
        turns, num_side = _from_messages(messages, tools), 0
    session_id = value.get("session_id") or hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
    return Conversation(str(session_id), tuple(turns), str(value.get("source") or ""), place, num_side)


def _from_messages(messages: Sequence[Message], tools: tuple[dict[str, Any], ...]) -> list[RecordedTurn]:
    """A turn for each assistant message: what stands before it is its request, what stands after it its next state."""
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index]
    turns = []
    for index, end in zip(replies, [*replies[1:], len(messages)], strict=True):
        followed = tuple(messages[index + 1 : end])
        turns.append(RecordedTurn(tuple(messages[:index]), messages[index], followed or None, True, tools))
    return turns


def _from_turns(values: Sequence[Any], tools: tuple[dict[str, Any], ...], place: str) -> tuple[list[RecordedTurn], int]:
    turns: list[RecordedTurn] = []
    num_side = 0
    context: tuple[Message, ...] = ()
    for number, value in enumerate(values, 1):
        where = f"{place}: turn {number}"
        _check_keys(value, _TURN_KEYS, where)
        kind = value.get("type", "main")
        if kind not in _TYPES:
            raise ConfigError(f"{where}: type {kind!r} is not one of main, side")
        is_main, record = _TYPES[kind], value.get("record")
        if not is_main and record is None:
            num_side += 1
            continue
        turn = RecordedTurn(
            _request(value, context, where),
            _reply(value, where),
            _next_state(value, where),
            _switch(value, "trainable", is_main, where),
            _tools(value["tools"], where) if "tools" in value else tools,
            record,
        )
        if is_main:
            if turns and record is None and turns[-1].next_state is None and (said := _added(turns[-1], turn.messages)):
                turns[-1] = replace(turns[-1], next_state=said)
            context = (*turn.messages, turn.reply)
        turns.append(turn)
    return turns, num_side


def _request(turn: Mapping[str, Any], context: tuple[Message, ...], where: str) -> tuple[Message, ...]:
    prompt = turn.get("prompt")
    if not isinstance(prompt, str | list) or prompt == []:
        raise ConfigError(f'{where}: "prompt" must be a text or a list of messages')
    goes_on = isinstance(prompt, str) or _switch(turn, "goes_on", False, where)
    return (*(context if goes_on else ()), *_messages(prompt, f"{where}: prompt"))


def _reply(turn: Mapping[str, Any], where: str) -> Message:
    response = turn.get("response")
    if isinstance(response, str):
        response = {"content": response}
    if isinstance(response, dict):
        [reply] = _messages({"role": "assistant", **response}, f"{where}: response")
        if reply["role"] == "assistant":
            return reply
    raise ConfigError(f'{where}: "response" must be a text or an assistant message')


def _next_state(turn: Mapping[str, Any], where: str) -> tuple[Message, ...] | None:
    said = turn.get("next_state")
    return None if said is None or said in ("", []) else _messages(said, f"{where}: next_state")


def _messages(said: Any, place: str) -> tuple[Message, ...]:
    """A text of the user's, a message or a list of messages."""
    if isinstance(said, str):
        said = {"role": "user", "content": said}
    return tuple(_message(message, place) for message in (said if isinstance(said, list) else [said]))


def _switch(turn: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = turn.get(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f'{where}: "{key}" must be true or false, not {value!r}')
    return value


def _added(earlier: RecordedTurn, request: tuple[Message, ...]) -> tuple[Message, ...]:
    """What a later request says after an earlier reply: its messages behind the last assistant message."""
    last = max((i for i, message in enumerate(request) if message["role"] == "assistant"), default=-1)
    is_same = last >= 0 and request[last].get("content") == earlier.reply.get("content")
    return request[last + 1 :] if is_same else ()


def _tools(value: Any, place: str) -> tuple[dict[str, Any], ...]:
    tools = _list(value or [], f"{place}: tools")
    if not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"{place}: tools must be a list of tool definitions")
    return tuple(tools)


def _message(value: Any, place: str) -> Message:
    try:
        return read_message(value, text_only=False)
    except RequestError as error:
        raise ConfigError(f"{place}: {error}") from None


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{place} must be a list")
    return value


def _check_keys(value: Any, known: Sequence[str], place: str) -> None:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: an object is expected, not {type(value).__name__}")
    for key in value:
        if key not in known:
            hint = nearest(key, known) or '; facts of your own go under "metadata"'
            raise ConfigError(f"{place}: unknown key {key!r}{hint}")
