"""Engines that hang, and requests that engines fail at: bounded in time and in tries, and no one else's affair."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest
from server_rig import StartRig, until
from slime.engines.scripted.faults import Fault

HI = {"role": "user", "content": "Hi"}
LONG = "Hello there, how are you today? " * 4


@pytest.mark.parametrize("stream", [False, True])
async def test_what_hangs_before_it_began_is_answered_by_another_engine(start: StartRig, stream: bool) -> None:
    rig = await start(num_engines=2, hung_s=0.6, token_delay_s=0.01)
    await rig.chat(session_id="s")
    home = rig.pool._homes["s"]
    number = rig.pool._members.index(home)
    rig.engine_apps[number].hang()
    began = time.monotonic()
    response = await rig.chat(session_id="s", stream=stream)
    assert (response.status_code, "Hello there." in response.text or stream) == (200, True)
    assert '"capture":"stored"' in response.text
    assert 0.5 < time.monotonic() - began < 10
    others = time.monotonic()
    assert (await rig.chat(session_id="another")).status_code == 200
    assert time.monotonic() - others < 2, "nobody else waits for the engine that hangs"
    rig.engine_apps[number].go_on()
    await until(lambda: home.is_alive)


async def test_a_stream_that_has_begun_ends_within_a_bound_when_its_engine_hangs(start: StartRig) -> None:
    rig = await start(LONG, hung_s=0.6, token_delay_s=0.02)
    received: list[bytes] = []
    began = 0.0

    async def read() -> None:
        nonlocal began
        body = {"messages": [HI], "stream": True}
        async with rig.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for piece in response.aiter_raw():
                received.append(piece)
                if not began:
                    began = time.monotonic()
                    rig.engine_apps[0].hang()

    with pytest.raises(httpx.RemoteProtocolError):
        await asyncio.wait_for(read(), 20)
    assert time.monotonic() - began < 10
    error = json.loads(received[-1].split(b"data: ")[-1])["error"]
    assert error["code"] == "engine_unavailable"
    assert rig.app._places.num_taken == 0
    rig.engine_apps[0].go_on()


async def test_an_engine_that_answers_slowly_is_not_taken_for_one_that_hangs(start: StartRig) -> None:
    rig = await start("Hi", hung_s=0.5, token_delay_s=1.0)
    assert (await rig.chat(stream=True)).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_poisons_engines_is_given_up_after_few_tries(start: StartRig, stream: bool) -> None:
    rig = await start(num_engines=2, patience_s=30)
    for engine in rig.engines:
        engine.faults.plan(Fault.HTTP_500, times=100)
    began = time.monotonic()
    response = await rig.chat(stream=stream)
    assert time.monotonic() - began < 5
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "engine_error"
    assert "failed on this request 3 times" in response.json()["error"]["message"]
    assert response.headers["x-should-retry"] == "false"
    assert sum(engine.faults.fired[Fault.HTTP_500] for engine in rig.engines) == 3


async def test_others_are_served_while_a_request_poisons(start: StartRig) -> None:
    rig = await start(patience_s=30)
    rig.engine.faults.plan(Fault.HTTP_500, times=3)
    poison = asyncio.create_task(rig.chat())
    await until(lambda: rig.engine.faults.fired[Fault.HTTP_500] >= 1)
    answers = [await rig.chat() for _ in range(6)]
    assert sum(answer.status_code == 200 for answer in [*answers, await poison]) >= 6


async def test_an_engine_that_is_only_full_is_waited_for(start: StartRig) -> None:
    rig = await start(patience_s=10)
    rig.engine.faults.plan(Fault.HTTP_503, times=5)
    assert (await rig.chat()).status_code == 200


@pytest.mark.parametrize("value", [1e-40, 1e-9])
async def test_a_temperature_that_makes_logits_infinite_is_refused(start: StartRig, value: float) -> None:
    rig = await start(capture=False)
    response = await rig.chat(temperature=value)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")
