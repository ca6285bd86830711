"""Every bad input gets OpenAI's error object, with the field in `param`; none gets a 500, none reaches the engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_rig import MAX_CONTEXT, StartRig, until
from slime.errors import RequestError

from openclaw.api.endpoints.chat_completions import read_chat_request
from openclaw.api.errors import ApiError, as_api_error
from openclaw.api.exchange import json_object
from openclaw.api.incoming import Incoming
from openclaw.requests.chat_request import Caller

USER = {"role": "user", "content": "Hi"}
JSON_BODY = {"content-type": "application/json"}
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "usr", "content": "Hi"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "messages[1].tool_calls[0].function"),
    ({"tools": "ls"}, "tools"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0]"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"n": 2}, "n"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"modalities": 1.0}, "modalities"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": "many"}, "max_completion_tokens"),
    ({"seed": "x"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"stream_options": "usage"}, "stream_options"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"logprobs": 1}, "logprobs"),
    ({"enable_thinking": "no"}, "enable_thinking"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"turn_type": "mian"}, "turn_type"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_field_is_named(start: StartRig, stream: bool) -> None:
    rig = await start()
    for fields, param in BAD_FIELDS:
        response = await rig.chat(**({"stream": stream} | fields))
        assert response.status_code == 400, (fields, response.text)
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert error["message"]
    assert rig.store is not None
    assert await rig.store.recent(1) == []


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        value = {"properties": value}
    return value


async def test_what_is_nested_beyond_reason_is_refused_or_served_and_never_a_fault(start: StartRig) -> None:
    rig = await start()
    deep = '{"a":' * 5_000 + "1" + "}" * 5_000
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": deep}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    response = await rig.chat(messages=[USER], metadata={"user_id": deep})
    assert (response.status_code, response.headers["x-openclaw-capture"]) == (200, "stored"), response.text
    response = await rig.chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}, result])
    assert response.json()["error"]["code"] == "context_length_exceeded", "it is text, and too much of it"
    as_object = {"id": "c", "type": "function", "function": {"name": "f", "arguments": _nested(300)}}
    refused: list[dict[str, Any]] = [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": _nested(300)}}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [as_object]}, result]},
        {"messages": [{**USER, "extra": _nested(300)}]},
    ]
    for fields in refused:
        assert (await rig.chat(**fields)).status_code == 400


async def test_more_messages_tools_or_parts_than_anybody_means_are_refused(start: StartRig) -> None:
    rig = await start()
    tool = {"type": "function", "function": {"name": "f"}}
    many: list[tuple[dict[str, Any], str]] = [
        ({"messages": [USER] * 5_000}, "messages"),
        ({"tools": [tool] * 2_000}, "tools"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 5_000}]}, "messages[0].content"),
    ]
    for fields, param in many:
        response = await rig.chat(**fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_what_cannot_fit_the_context_window_is_refused_before_it_is_parsed(start: StartRig) -> None:
    rig = await start()
    response = await rig.http.post("/v1/chat/completions", content=b"[" * 8_000_000, headers=JSON_BODY)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_long_body_of_very_many_small_values_is_refused_before_they_are_made() -> None:
    for pump in (b"[],", b"0,", b'{"a":1},'):
        with pytest.raises(ApiError, match="holds more than"):
            await json_object(b'{"messages":[' + pump * 210_000 + b"0]}")
    assert await json_object(b'{"messages":[' + b"[]," * 10_000 + b"0]}")


NO_JSON_OBJECTS = (
    *(b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 10_000, b'{"a":' * 5000, b'{"messages": NaN}'),
    *(b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'\xef\xbb\xbf{"messages": []}'),
)


@pytest.mark.parametrize("raw", NO_JSON_OBJECTS)
async def test_what_is_no_json_object_is_refused(start: StartRig, raw: bytes) -> None:
    rig = await start(capture=False)
    response = await rig.http.post("/v1/chat/completions", content=raw)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


async def test_unknown_fields_are_ignored(start: StartRig) -> None:
    rig = await start()
    odd = {"store": True, "metadata": {"a": "b"}, "user": "me", "parallel_tool_calls": False, "whatever": [1]}
    assert (await rig.chat(**odd, tool_choice="required", response_format={"type": "text"})).status_code == 200


async def test_a_prompt_that_is_too_long_is_told_apart(start: StartRig) -> None:
    rig = await start()
    response = await rig.chat(messages=[{"role": "user", "content": "long " * MAX_CONTEXT}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert str(MAX_CONTEXT) in response.json()["error"]["message"]


async def test_the_official_client_raises_its_own_errors(start: StartRig) -> None:
    rig = await start(api_key="k")
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        await rig.client("k").chat.completions.create(model="m", messages=[USER], n=2)  # type: ignore[list-item]
    with pytest.raises(openai.AuthenticationError):
        await rig.client("wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        await rig.client("k").embeddings.create(model="m", input="x")


async def test_wrong_paths_and_methods(start: StartRig) -> None:
    rig = await start(capture=False)
    assert (await rig.http.get("/nowhere")).status_code == 404
    published = await rig.http.post("/rollout", json={"session_id": "s"})
    assert (published.status_code, "\n" in published.json()["error"]["message"]) == (404, False)
    assert (await rig.http.get("/v1/chat/completions")).status_code == 405
    assert (await rig.http.post("/v1/models")).json()["error"]["type"] == "invalid_request_error"


async def test_a_body_that_is_too_large_is_refused_unread(start: StartRig) -> None:
    rig = await start(capture=False)
    reader, writer = await asyncio.open_connection(*rig.url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n")
    writer.write(b"content-type: application/json\r\ncontent-length: 99999999\r\n\r\n{")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
    assert b" 413 " in head
    writer.close()


async def test_more_requests_than_allowed_are_told_to_come_back(start: StartRig) -> None:
    rig = await start(max_concurrent_requests=1, token_delay_s=0.2)
    first = asyncio.create_task(rig.chat())
    await until(lambda: rig.app._places.num_taken == 1)
    refused = await rig.chat()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "overloaded"
    assert (await rig.http.get("/healthz")).status_code == 200
    assert (await first).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    "messages tools stream stop temperature top_p max_tokens n logprobs tool_choice stream_options seed top_k "  # noqa: SIM905
    "chat_template_kwargs enable_thinking modalities functions".split()
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "x"]), "content": JSON},
        optional={"tool_calls": JSON, "tool_call_id": JSON, "name": JSON, "reasoning_content": JSON},
    ),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=6), MESSAGES)
def test_no_json_upsets_the_parser(fields: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    refusal: ApiError | None = None
    try:
        asyncio.run(read_chat_request(Incoming({"messages": messages} | fields, Caller()), 100))
    except RequestError as error:
        refusal = as_api_error(error)
    if refusal is not None:
        assert refusal.status == 400
        assert json.loads(refusal.body())["error"]["message"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MESSAGES.filter(bool))
async def test_no_messages_upset_the_server(start: StartRig, messages: list[dict[str, Any]]) -> None:
    """Whatever passes the parser is rendered and answered, or refused with a reason."""
    rig = await _shared(start)
    response = await rig.chat(messages=messages)
    assert response.status_code in (200, 400), response.text
    await json_object(response.content)


async def _shared(start: StartRig) -> Any:
    if not hasattr(start, "rig"):
        start.rig = await start()  # type: ignore[attr-defined]
    return start.rig  # type: ignore[attr-defined]
