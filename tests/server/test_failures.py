"""Engines that fail, clients that leave: nothing ends in silence, and nothing half-said counts as said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from server_rig import Rig, StartRig, listening, until
from slime.engines.client import HttpEngine
from slime.engines.scripted.faults import Fault
from slime.types import Turn, TurnState

from openclaw.engine_pool import EnginePool

HI = {"role": "user", "content": "Hi"}
LONG = "Hello there, how are you today? " * 4


async def turns(rig: Rig) -> list[Turn]:
    assert rig.store is not None
    return await rig.store.recent(10)


async def read_broken_stream(rig: Rig) -> list[bytes]:
    """The events of a stream that must not end as a complete one does."""
    raw = b""

    async def read() -> None:
        nonlocal raw
        body = {"messages": [HI], "stream": True, "max_tokens": 20}
        async with rig.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for piece in response.aiter_raw():
                raw += piece

    with pytest.raises(httpx.RemoteProtocolError):
        await read()
    return [event for event in raw.split(b"\n\n") if event]


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.BAD_JSON])
async def test_a_stream_that_fails_ends_in_an_error_event_and_a_cut(start: StartRig, fault: Fault) -> None:
    rig = await start(LONG)
    rig.engine.faults.plan(fault)
    events = await read_broken_stream(rig)
    assert rig.engine.faults.fired[fault] == 1
    error = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert b"[DONE]" not in b"".join(events)
    await until(lambda: _has_turns(rig, 1))
    (turn,) = await turns(rig)
    assert turn.state is TurnState.ABORTED
    sent = "".join(json.loads(event[6:])["choices"][0]["delta"]["content"] for event in events[:-1])
    assert turn.reply["content"] == sent
    assert 0 < len(turn.completion.token_ids) < 40
    assert turn.completion.policy_versions == (0,) * len(turn.completion.token_ids)


async def test_the_official_client_raises_on_a_stream_that_fails(start: StartRig) -> None:
    rig = await start(LONG)
    rig.engine.faults.plan(Fault.CUT)
    create = rig.client().chat.completions.create
    stream = await create(model="m", messages=[HI], max_tokens=20, stream=True)  # type: ignore[list-item]
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [Fault.HTTP_503, Fault.HTTP_500])
async def test_what_has_not_begun_is_tried_again(start: StartRig, fault: Fault, stream: bool) -> None:
    rig = await start("Hello there.")
    rig.engine.faults.plan(fault, times=2)
    response = await rig.chat(stream=stream)
    assert rig.engine.faults.fired[fault] == 2
    assert response.status_code == 200
    assert '"capture":"stored"' in response.text


async def test_a_whole_reply_that_was_cut_is_tried_again(start: StartRig) -> None:
    rig = await start("Hello there.")
    rig.engine.faults.plan(Fault.CUT)
    assert (await rig.chat()).json()["choices"][0]["message"]["content"] == "Hello there."
    assert len(await turns(rig)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_stays_away_is_a_503_with_a_time(start: StartRig, stream: bool) -> None:
    rig = await start(patience_s=0.5)
    rig.engine.faults.plan(Fault.HTTP_503, times=100)
    response = await rig.chat(stream=stream)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert await turns(rig) == []


@pytest.mark.parametrize("fault", [Fault.NAN_LOGPROB, Fault.WRONG_COUNT])
async def test_an_engine_that_talks_nonsense_is_not_believed(start: StartRig, fault: Fault) -> None:
    rig = await start()
    rig.engine.faults.plan(fault)
    response = await rig.chat()
    assert response.status_code == 502
    assert response.json()["error"]["type"] == "server_error"
    assert await turns(rig) == []


async def test_a_dead_engine_is_passed_over(start: StartRig) -> None:
    rig = await start(num_engines=2)
    rig.engines[0].faults.plan(Fault.HTTP_503, times=100)
    responses = [await rig.chat(headers={"X-Session-Id": f"s{number}"}) for number in range(4)]
    assert [response.status_code for response in responses] == [200] * 4


async def test_a_session_stays_with_its_engine(start: StartRig) -> None:
    rig = await start(lambda prompt: f"engine {id(prompt.vocabulary)}", num_engines=2)
    for session in ("a", "b", "c"):
        replies = {(await rig.chat(session_id=session)).json()["choices"][0]["message"]["content"] for _ in range(4)}
        assert len(replies) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_generation(start: StartRig, stream: bool) -> None:
    rig = await start(LONG, token_delay_s=0.4)  # twelve seconds and more in all
    body = json.dumps({"messages": [HI], "stream": stream}).encode()
    reader, writer = await asyncio.open_connection(*rig.url.removeprefix("http://").split(":"))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    if stream:
        await reader.readuntil(b'"content"')
    else:
        await until(lambda: bool(rig.engine.requests))
    writer.close()
    await until(lambda: not rig.engine.requests, 8.0)
    assert rig.app._places.num_taken == 0
    if stream:
        await until(lambda: _has_turns(rig, 1))
        (turn,) = await turns(rig)
        assert turn.state is TurnState.ABORTED
        assert LONG.startswith(turn.reply["content"])
        assert 0 < len(turn.completion.token_ids) < 20
    else:
        assert await turns(rig) == []


async def test_a_retry_after_a_failure_is_known_as_one(start: StartRig) -> None:
    rig = await start(LONG)
    rig.engine.faults.plan(Fault.CUT)
    await read_broken_stream(rig)
    await rig.chat(stream=True, max_tokens=20)
    await until(lambda: _has_turns(rig, 2))
    failed, again = await turns(rig)
    assert again.retry_of == failed.turn_id
    assert again.kind == "retry"


async def test_the_next_state_survives_a_reply_that_fails(start: StartRig) -> None:
    rig = await start(["Hello there.", LONG], patience_s=0.2)
    await rig.chat()
    rig.engine.faults.plan(Fault.HTTP_503, times=100)
    thanks = {"role": "user", "content": "Thanks!"}
    refused = await rig.chat(messages=[HI, {"role": "assistant", "content": "Hello there."}, thanks])
    assert refused.status_code == 503
    await until(lambda: _is_ready_to_judge(rig))
    assert (await turns(rig))[0].next_state == (thanks,)


async def test_a_server_that_stops_waiting_says_so(start: StartRig) -> None:
    rig = await start(token_delay_s=30)
    async with httpx.AsyncClient(timeout=20) as http:
        async with listening(rig.app) as url:
            running = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json={"messages": [HI]}))
            await until(lambda: bool(rig.engine.requests))
        reply = await running
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "shutting_down"


async def test_weights_may_change_while_a_stream_runs(start: StartRig, tmp_path: Any) -> None:
    rig = await start(LONG, token_delay_s=0.02)
    streaming = asyncio.create_task(rig.chat(stream=True))
    await until(lambda: any(running.output.token_ids for running in rig.engine.requests.values()))
    await rig.pool._members[0].engine.update_weights(tmp_path, 7)
    response = await streaming
    assert response.text.endswith("data: [DONE]\n\n")
    (turn,) = await turns(rig)
    assert [span.version for span in turn.completion.spans] == [0, 7]


async def test_an_engine_that_starts_is_no_warning_and_one_that_is_lost_is(caplog: pytest.LogCaptureFixture) -> None:
    for are_starting, level in ((True, "INFO"), (False, "WARNING")):
        caplog.clear()
        pool = EnginePool([HttpEngine("http://127.0.0.1:9")], are_starting=are_starting)
        with caplog.at_level("INFO", "openclaw"):
            assert not await pool.is_ready()
        await pool.close()
        assert [record.levelname for record in caplog.records] == [level]


async def test_readiness_is_lost_and_found_with_the_engine(start: StartRig) -> None:
    rig = await start()
    rig.pool._members[0].engine.base_url = "http://127.0.0.1:9"
    rig.pool._members[0].last_success = float("-inf")
    lost = await rig.http.get("/readyz")
    assert (lost.status_code, lost.json()["engine"], lost.json()["store"]) == (503, False, True)
    rig.pool._members[0].engine.base_url = rig.engine_urls[0]
    assert (await rig.http.get("/readyz")).status_code == 200


async def _has_turns(rig: Rig, count: int) -> bool:
    return len(await turns(rig)) == count


async def _is_ready_to_judge(rig: Rig) -> bool:
    return (await turns(rig))[0].state is TurnState.READY
