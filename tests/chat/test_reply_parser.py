"""The streaming parser: any cutting of a reply gives the same message, and what is no call stays text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.chat import ReplyParser

CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>'


def read(text: str, cuts: tuple[int, ...] = (), **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message of `text` fed in pieces cut at `cuts`, and all deltas."""
    parser = ReplyParser(**{"with_tools": True} | options)
    edges = [0, *sorted(cuts), len(text)]
    deltas = [
        delta for start, end in itertools.pairwise(edges) for delta in parser.feed(text[start:end])
    ] + parser.finish()
    return parser.message(), deltas


def add_up(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream of deltas."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for piece in delta.get("tool_calls", ()):
            if piece["index"] not in calls:
                assert piece["id"]
                assert piece["type"] == "function"
                assert piece["function"]["name"]
                calls[piece["index"]] = json.loads(json.dumps({k: v for k, v in piece.items() if k != "index"}))
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    assert list(calls) == list(range(len(calls)))
    if calls:
        message["tool_calls"] = list(calls.values())
        message["content"] = message["content"] or None
    if not message["reasoning_content"]:
        del message["reasoning_content"]
    return message


def test_thought_text_and_calls_are_told_apart() -> None:
    message, _ = read(f"<think>\nhm\n</think>\n\nLet me look.\n{CALL}\n{CALL}")
    assert message["reasoning_content"] == "hm"
    assert message["content"] == "Let me look."
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "ls", "arguments": '{"path": "/tmp"}'}] * 2
    assert [call["id"] for call in message["tool_calls"]] == ["call0", "call1"]


def test_a_reply_of_calls_only_has_no_content() -> None:
    assert read(CALL)[0]["content"] is None


def test_a_prompt_that_opened_the_thought_needs_no_opening_tag() -> None:
    message, _ = read("hm\n</think>\n\nHi", in_reasoning=True)
    assert (message["reasoning_content"], message["content"]) == ("hm", "Hi")


def test_a_thought_that_never_ends_is_all_reasoning() -> None:
    message, _ = read("<think>\nand then and then ")
    assert (message["reasoning_content"], message["content"]) == ("and then and then", "")


def test_without_tools_on_offer_a_call_is_text() -> None:
    message, _ = read(CALL, with_tools=False)
    assert message == {"role": "assistant", "content": CALL}


def test_a_thought_in_the_middle_of_a_reply_is_text() -> None:
    assert read("I say <think>no</think>")[0]["content"] == "I say <think>no</think>"


@pytest.mark.parametrize(
    "text",
    [
        "a <tool_call>not json</tool_call> b",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1',
        '<tool_call>{"name": "f", "arguments": "\\ud800"}</tool_call>',
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>",
        "</tool_call>",
        "x < y and <tool",
    ],
)
def test_a_malformed_call_stays_text(text: str) -> None:
    assert read(text)[0] == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),  # the last brace forgotten
        ('{"name":"f","parameters":{"a":1}}', '{"a":1}'),
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'),
        ('{"name": "f", "arguments": {"a": "x\ny"}}', '{"a": "x\\ny"}'),  # a raw line break is mended
        ('{"name": "f", "arguments": {"a": "}{\\"\\\\"}}', '{"a": "}{\\"\\\\"}'),
    ],
)
def test_usual_slips_are_forgiven(body: str, arguments: str) -> None:
    message, _ = read(f"<tool_call>\n{body}\n</tool_call>")
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": arguments}


def test_a_whole_call_without_its_closing_tag_counts() -> None:
    assert read('<tool_call>\n{"name": "f", "arguments": {}}')[0]["tool_calls"][0]["function"]["name"] == "f"


def test_text_leaves_at_once() -> None:
    parser = ReplyParser(with_tools=True)
    assert [parser.feed(piece) for piece in ("Hel", "lo", " there")] == [
        [{"content": "Hel"}],
        [{"content": "lo"}],
        [{"content": " there"}],
    ]


def test_arguments_are_streamed_when_asked() -> None:
    parser = ReplyParser(with_tools=True, streams_arguments=True)
    assert parser.feed('<tool_call>\n{"name": "write", ') == []
    head, first = parser.feed('"arguments": {"text": "a')  # out before the call is whole
    assert head["tool_calls"][0]["function"] == {"name": "write", "arguments": ""}
    assert first == {"tool_calls": [{"index": 0, "function": {"arguments": '{"text": "a'}}]}
    assert parser.feed("bc") == [{"tool_calls": [{"index": 0, "function": {"arguments": "bc"}}]}]
    parser.feed('"}}\n</tool_call>')
    assert parser.message()["tool_calls"][0]["function"]["arguments"] == '{"text": "abc"}'


def test_a_call_that_breaks_while_it_is_streamed_reaches_the_client_as_it_was_written() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>'
    message, deltas = read(text, streams_arguments=True)
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": }'
    assert add_up(deltas)["tool_calls"] == message["tool_calls"]


PIECES = st.sampled_from(
    [
        "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool", "call>", "<", ">", "\n", " ", "\n\n", CALL,
        '{"name": "f", "arguments": ', '{"name": "é\\n", "arguments": {"ü": "\\"}</tool_call>"}}', "{", "}", '"', "\\",
        "[1, 2]", "name", "Hello", "日本", "🙂", "é", "x", "0", ":", ",",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.lists(PIECES, max_size=14).map("".join),
    st.lists(st.integers(0, 200), max_size=12),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_cutting_gives_the_same_message(
    text: str, cuts: list[int], with_tools: bool, in_reasoning: bool, streams: bool
) -> None:
    options = {"with_tools": with_tools, "in_reasoning": in_reasoning, "streams_arguments": streams}
    whole, _ = read(text, **options)
    message, deltas = read(text, tuple(cut for cut in cuts if cut < len(text)), **options)
    assert message == whole
    assert add_up(deltas) == message
    one_by_one, _ = read(text, tuple(range(len(text))), **options)
    assert one_by_one == whole


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_only_white_space_and_tags_are_ever_lost(text: str) -> None:
    message, _ = read(text)
    kept = (message.get("reasoning_content", "") + (message["content"] or "")).replace(" ", "").replace("\n", "")
    if "tool_calls" not in message:
        lost = text.replace(" ", "").replace("\n", "")
        assert kept in (lost, lost.replace("<think>", "", 1), lost.replace("<think>", "", 1).replace("</think>", "", 1))


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.text(max_size=9) | st.integers() | st.none(), st.lists)),
    st.lists(st.integers(0, 200), max_size=8),
    st.booleans(),
)
def test_every_well_formed_call_survives(arguments: dict[str, Any], cuts: list[int], streams: bool) -> None:
    body = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    text = f"Look:\n<tool_call>\n{body}\n</tool_call>"
    message, _ = read(text, tuple(cut for cut in cuts if cut < len(text)), streams_arguments=streams)
    assert message["content"] == "Look:"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == arguments
