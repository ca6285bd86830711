"""What clients read: the official library, and every field that a known client needs."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from server_rig import StartRig

USER = [{"role": "user", "content": "Hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}]
TOOL_REPLY = (
    "<think>\nI look.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>'
    '\n<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'
)


async def test_the_openai_client_gets_a_whole_reply(start: StartRig) -> None:
    rig = await start("Hello there.")
    reply = await rig.client().chat.completions.create(model="any", messages=USER)
    assert reply.choices[0].message.content == "Hello there."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.model == "tiny"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_the_openai_client_streams_token_by_token(start: StartRig) -> None:
    rig = await start("Hello there, how are you?")
    stream = await rig.client().chat.completions.create(
        model="any", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == "Hello there, how are you?"
    assert len(texts) > 3
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens >= len(texts)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


async def test_the_openai_client_gets_tool_calls_and_reasoning(start: StartRig) -> None:
    rig = await start(TOOL_REPLY)
    reply = await rig.client().chat.completions.create(model="any", messages=USER, tools=TOOLS)
    message = reply.choices[0].message
    assert message.content == "Let me see."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "I look."
    assert reply.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert [call.function.arguments for call in message.tool_calls] == ['{"path": "/tmp"}', "{}"]
    assert len({call.id for call in message.tool_calls}) == 2


async def test_streamed_and_whole_replies_say_the_same(start: StartRig) -> None:
    rig = await start(TOOL_REPLY)
    whole = (await rig.chat(tools=TOOLS)).json()["choices"][0]["message"]
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    for event in (await rig.events(tools=TOOLS))[:-1]:
        delta = json.loads(event)["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(calls):
                calls.append(piece)
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    assert (message["content"], message["reasoning_content"]) == (whole["content"], whole["reasoning_content"])
    assert [call["function"] for call in calls] == [call["function"] for call in whole["tool_calls"]]


async def test_every_chunk_has_what_clients_need(start: StartRig) -> None:
    rig = await start(TOOL_REPLY)
    events = await rig.events(tools=TOOLS, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert isinstance(chunk["created"], int)
        assert chunk["model"] == "tiny"
        assert "usage" in chunk
    *deltas, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    assert deltas[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(chunk["choices"][0]["index"] == 0 for chunk in deltas)
    assert [chunk["choices"][0]["finish_reason"] for chunk in deltas].count(None) == len(deltas) - 1
    assert deltas[-1]["choices"][0]["finish_reason"] == "tool_calls"
    seen = set()
    for chunk in deltas:
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            assert isinstance(call["index"], int)
            if call["index"] not in seen:
                assert call["id"].isalnum()
                assert call["type"] == "function"
                assert call["function"]["name"] == "ls"
            seen.add(call["index"])
    assert seen == {0, 1}


async def test_a_whole_reply_has_what_clients_need(start: StartRig) -> None:
    rig = await start('<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>')
    first, second = [(await rig.chat(tools=TOOLS)).json() for _ in range(2)]
    assert first["id"] != second["id"]
    assert first["object"] == "chat.completion"
    choice = first["choices"][0]
    assert choice["index"] == 0
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "ls", "arguments": "{}"})
    assert call["id"].isalnum()
    assert call["id"] != second["choices"][0]["message"]["tool_calls"][0]["id"]


async def test_log_probs_are_those_of_the_engine(start: StartRig) -> None:
    rig = await start("Hello é")
    whole = (await rig.chat(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in whole).decode() == "Hello é"
    assert rig.store is not None
    (turn,) = await rig.store.recent(1)
    assert [entry["logprob"] for entry in whole] == list(turn.completion.logprobs[: len(whole)])
    streamed = [
        json.loads(event)["choices"][0]["logprobs"]["content"] for event in (await rig.events(logprobs=True))[:-1]
    ]
    assert [entry["bytes"] for chunk in streamed for entry in chunk] == [entry["bytes"] for entry in whole]


async def test_length_limits_are_kept_and_cut_to_the_window(start: StartRig) -> None:
    rig = await start("Hello there, how are you? " * 20)
    reply = (await rig.chat(max_completion_tokens=3, max_tokens=100)).json()
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["choices"][0]["finish_reason"] == "length"
    long = (await rig.chat(max_tokens=32_000)).json()
    assert long["choices"][0]["finish_reason"] == "stop"


async def test_stop_strings_end_a_reply(start: StartRig) -> None:
    rig = await start("Hello there. Observation: none")
    assert (await rig.chat(stop=["Observation:"])).json()["choices"][0]["message"]["content"] == "Hello there. "
    events = await rig.events(stop="Observation:")
    texts = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    assert "".join(texts) == "Hello there. "


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_reply_is_a_reply(start: StartRig, stream: bool) -> None:
    rig = await start("")
    if stream:
        first, done = await rig.events()
        assert json.loads(first)["choices"][0] == {
            "index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"
        }  # fmt: skip
        assert done == "[DONE]"
    else:
        assert (await rig.chat()).json()["choices"][0]["message"]["content"] == ""


async def test_tools_that_may_not_be_called_are_not_offered(start: StartRig) -> None:
    rig = await start('<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>')
    reply = (await rig.chat(tools=TOOLS, tool_choice="none")).json()["choices"][0]
    assert reply["finish_reason"] == "stop"
    assert "<tool_call>" in reply["message"]["content"]


async def test_chunks_leave_one_by_one(start: StartRig) -> None:
    rig = await start("Hello there, how are you today?", token_delay_s=0.02)
    pieces = []
    async with rig.http.stream("POST", "/v1/chat/completions", json={"messages": USER, "stream": True}) as response:
        async for piece in response.aiter_raw():
            pieces.append(piece)
    data = [piece for piece in pieces if b'"content"' in piece]
    assert len(data) >= 5
    assert all(piece.count(b"data: ") == 1 for piece in data)


async def test_slow_replies_are_kept_alive(start: StartRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.api.exchange.KEEP_ALIVE_S", 0.05)
    rig = await start("Hi", token_delay_s=0.3)
    text = (await rig.chat(stream=True)).text
    assert text.startswith(": keep-alive\n\n")
    assert text.endswith("data: [DONE]\n\n")
    chunks = [
        chunk async for chunk in await rig.client().chat.completions.create(model="m", messages=USER, stream=True)
    ]
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_models_health_and_root(start: StartRig) -> None:
    rig = await start()
    assert [model.id async for model in rig.client().models.list()] == ["tiny"]
    assert (await rig.http.get("/healthz")).json() == {"ok": True}
    assert (await rig.http.get("/readyz")).json()["ready"] is True
    head = await rig.http.head("/")
    assert (head.status_code, head.content) == (200, b"")


async def test_a_key_is_wanted_when_one_is_set(start: StartRig) -> None:
    rig = await start(api_key="s3cret")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        refused = await rig.chat(headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert (await rig.http.get("/v1/models")).status_code == 401
    assert (await rig.http.get("/healthz")).status_code == 200
    assert (await rig.chat(headers={"authorization": "bearer s3cret"})).status_code == 200


async def test_any_key_is_accepted_when_none_is_set(start: StartRig) -> None:
    rig = await start()
    reply = await rig.client("local").chat.completions.create(model="m", messages=USER)
    assert reply.choices[0].message.content
    assert (await httpx.AsyncClient().get(f"{rig.url}/v1/models")).status_code == 200
