"""Server, files, template, judges and rewards read a message alike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openclaw_test.tiny.tokenizer import learn_tokenizer
from slime.chat import ChatFormat
from slime.data.conversation_files import parse_conversation
from slime.errors import ConfigError, RequestError
from slime.judging.llm.prompts import message_text
from slime.messages import calls_of, parts_of, read_message, text_of
from slime.plugins.rewards import text_of_all

from openclaw.api.endpoints.chat_completions import read_chat_request
from openclaw.api.incoming import Incoming
from openclaw.requests.chat_request import Caller
from openclaw.requests.wire_formats import read_request

PARTS = [{"type": "text", "text": "one"}, "two", {"type": "refusal", "refusal": "three"}]
WRONG: list[tuple[Any, str]] = [
    ("Hi", ""),
    ({"content": "Hi"}, ".role"),
    ({"role": "usr", "content": "Hi"}, ".role"),
    ({"role": "user", "content": 3}, ".content"),
    ({"role": "user", "content": [3]}, ".content[0]"),
    ({"role": "user", "content": ["a", {"type": "text"}]}, ".content[1].text"),
    ({"role": "user", "content": [{"type": "text", "text": ""}] * 5_000}, ".content"),
    ({"role": "assistant", "tool_calls": {}}, ".tool_calls"),
    ({"role": "assistant", "tool_calls": [{}]}, ".tool_calls[0].function"),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]},
        ".tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("value", "field"), WRONG)
def test_a_request_and_a_file_refuse_the_same_messages_in_the_same_words(value: Any, field: str) -> None:
    with pytest.raises(RequestError) as in_request:
        asyncio.run(read_chat_request(Incoming({"messages": [value]}, Caller()), 100))
    assert in_request.value.field == f"messages[0]{field}"
    with pytest.raises(ConfigError) as in_file:
        parse_conversation({"messages": [value]}, "talks.jsonl:3")
    assert str(in_file.value) == f"talks.jsonl:3: message 1: {in_request.value}"


def test_what_no_text_model_can_be_fed_is_refused_in_a_request_and_kept_in_a_file() -> None:
    for value in ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, {"role": "user"}):
        with pytest.raises(RequestError):
            read_message(value)
        assert read_message(value, text_only=False) is value


def test_the_text_of_a_message_is_one_for_server_template_judge_and_reward() -> None:
    message = {"role": "user", "content": PARTS}
    words = "one\ntwo\nthree"
    assert text_of(PARTS) == words
    assert read_request("/v1/chat/completions", {"messages": [message]}).messages[0].text == words
    assert message_text(message) == words
    assert text_of_all((message,)) == words
    chat = ChatFormat(learn_tokenizer(["one two three"] * 2))
    assert chat.render([message]) == chat.render([{"role": "user", "content": words}])


def test_parts_that_are_no_text_are_left_out_of_the_text_and_named_to_a_judge() -> None:
    content = [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {}}, {"text": 3}, 7]
    assert text_of(content) == "Look:"
    assert list(parts_of(content)) == [("text", "Look:"), ("image_url", None), ("part", None), ("part", None)]
    assert message_text({"role": "user", "content": content}) == "Look:\n(image_url)\n(part)\n(part)"
    assert text_of(None) == text_of(3) == text_of({}) == ""


def test_arguments_of_a_call_are_text_however_they_were_written() -> None:
    calls = [{"function": {"name": "f", "arguments": '{"a":  1}'}}, {"function": {"name": "g", "arguments": {"a": 1}}}]
    assert calls_of({"role": "assistant", "tool_calls": [*calls, "no call"]}) == [("f", '{"a":  1}'), ("g", '{"a": 1}')]
