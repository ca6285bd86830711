"""Three wire formats, one list of messages."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from slime.types import TurnKind

from openclaw.conversations.index import ConversationIndex
from openclaw.replay import as_recorded
from openclaw.requests.canonical import alphanumeric, with_text
from openclaw.requests.wire_formats import read_reply, read_request

CALL = {"id": "call_1a", "type": "function", "function": {"name": "run", "arguments": '{"path":"."}'}}
ROLES = [("user", ()), ("assistant", ("call1a",)), ("tool", ("call1a",)), ("user", ())]


def test_one_conversation_reads_the_same_in_every_wire_format() -> None:
    chat = read_request(
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "Be kind."},
                {"role": "user", "content": [{"type": "text", "text": "List"}]},
                {"role": "assistant", "content": "Looking.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1a", "content": "a.py"},
                {"role": "user", "content": "Thanks"},
            ],
            "tools": [{"type": "function"}],
        },
    )
    anthropic = read_request(
        "/messages?beta=true",
        {
            "model": "m",
            "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "List"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "Looking."},
                        {"type": "tool_use", "id": "call_1a", "name": "run", "input": {"path": "."}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "call_1a", "content": "a.py"},
                        {"type": "text", "text": "Thanks"},
                    ],
                },
            ],
            "tools": [{"name": "run"}],
        },
    )
    responses = read_request(
        "/v1/responses",
        {
            "model": "m",
            "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "List"}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
                {"type": "function_call", "call_id": "call_1a", "name": "run", "arguments": '{"path":"."}'},
                {"type": "function_call_output", "call_id": "call_1a", "output": "a.py"},
                {"type": "message", "role": "user", "content": "Thanks"},
            ],
            "tools": [{"type": "function", "name": "run"}],
        },
    )
    for request in (chat, anthropic, responses):
        assert [(message.role, message.call_ids) for message in request.messages] == ROLES
        assert [message.text for message in request.messages] == ["List", "Looking.", "a.py", "Thanks"]
        assert (request.system, request.num_tools, request.model) == ("Be kind.", 1, "m")
        assert request.messages[1].message["tool_calls"] == [CALL]
    assert anthropic.messages[1].message["reasoning_content"] == "hm"
    assert responses.messages[1].message["reasoning_content"] == "hm"


def test_replies_of_every_wire_format_become_a_chat_message() -> None:
    expected = {"role": "assistant", "content": "Looking.", "tool_calls": [CALL]}
    chat = {"choices": [{"message": expected}]}
    anthropic = {
        "content": [
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "call_1a", "name": "run", "input": {"path": "."}},
        ]
    }
    responses = {
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]},
            {"type": "function_call", "call_id": "call_1a", "name": "run", "arguments": '{"path":"."}'},
        ]
    }
    assert read_reply("/v1/chat/completions", chat) == expected
    assert read_reply("/v1/messages", anthropic) == expected
    assert read_reply("/v1/responses", responses) == expected


def test_parallel_calls_and_their_results_stay_one_reply() -> None:
    items = [
        {"type": "function_call", "call_id": "a", "name": "run", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "text"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
    ]
    messages = read_request("/v1/responses", {"input": items}).messages
    assert [(message.role, message.call_ids) for message in messages] == [
        ("assistant", ("a", "b")),
        ("tool", ("a",)),
        ("tool", ("b",)),
    ]


def test_notes_between_messages_keep_their_place() -> None:
    body = {"messages": [{"role": "user", "content": "Go"}, {"role": "system", "content": "Someone writes: stop"}]}
    assert [message.role for message in read_request("/v1/messages", body).messages] == ["user", "system"]


def test_texts_are_replaced_and_pictures_stay() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    message = {"role": "user", "content": [{"type": "text", "text": "[stamp] Look"}, picture]}
    assert with_text(message, "Look") == {"role": "user", "content": [{"type": "text", "text": "Look"}, picture]}
    assert with_text({"role": "user", "content": "[stamp] Look"}, "Look") == {"role": "user", "content": "Look"}


def test_only_letters_and_digits_of_an_id_count() -> None:
    assert alphanumeric("call_mock-08") == alphanumeric("callmock08") == "callmock08"
    assert alphanumeric(None) == ""


FIELDS = ["role", "content", "type", "text", "tool_calls", "id", "function", "name", "arguments", "call_id", "output"]
KINDS = ["assistant", "user", "tool", "text", "message", "tool_use", "tool_result", "function_call"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS), inner | st.sampled_from(KINDS), max_size=5)
    ),
    max_leaves=24,
)


@given(
    endpoint=st.sampled_from(["/v1/chat/completions", "/v1/messages", "/v1/responses"]),
    body=st.dictionaries(
        st.sampled_from(
            ["messages", "input", "system", "instructions", "tools", "user", "metadata", "response_format", "text"]
        ),
        JSON,
    ),
)
def test_no_json_body_is_too_odd_to_be_placed(endpoint: str, body: dict[str, object]) -> None:
    """What a body must hold is the endpoint's business; capture places whatever got through."""
    index = ConversationIndex()
    placement = index.begin(as_recorded(endpoint, {}, body, "key", 1.0))
    index.finish(placement, {"role": "assistant", "content": "Yes."})
    assert isinstance(placement.kind, TurnKind)
    json.dumps(placement.matching)
