"""The client against an engine that fails: typed errors, deadlines, and no engine left paused or working for nobody."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from rig import Rig, run_rig
from scripted_engine import ScriptedEngine
from slime.engines.client import HttpEngine
from slime.engines.launch import free_port
from slime.engines.scripted.faults import Fault
from slime.errors import EngineError, EngineRejected, EngineUnavailable
from slime.protocols import Engine, GenerateRequest
from slime.types import SamplingParams

TYPED = {
    Fault.HTTP_500: EngineUnavailable,
    Fault.HTTP_503: EngineUnavailable,
    Fault.CUT: EngineUnavailable,
    Fault.BAD_JSON: EngineError,
    Fault.NAN_LOGPROB: EngineError,
    Fault.WRONG_COUNT: EngineError,
    Fault.WRONG_VERSION: EngineError,
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from run_rig("scripted", tmp_path_factory.mktemp("scripted"), tolerance=1e-9)


@pytest.fixture
async def engine(rig: Rig) -> AsyncIterator[HttpEngine]:
    async with HttpEngine(rig.url, timeout_s=20.0, stall_s=0.5) as client:
        yield client


def _plan(rig: Rig, fault: Fault, **plan: int) -> int:
    """Plan a fault; how often it has fired so far."""
    assert rig.post("/faults", {"fault": fault, **plan}).status_code == 200
    return _fired(rig, fault)


def _fired(rig: Rig, fault: Fault) -> int:
    return int(httpx.get(rig.url + "/faults").json()["fired"].get(fault, 0))


def _request() -> GenerateRequest:
    # A name of its own: an abort that is still on its way must not hit the next request.
    return GenerateRequest(uuid.uuid4().hex, (1, 2, 3), SamplingParams(max_new_tokens=20))


async def _ask(engine: Engine, *, stream: bool) -> None:
    if stream:
        async for _ in engine.stream(_request()):
            pass
    else:
        await engine.generate(_request())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", TYPED)
async def test_a_fault_is_a_typed_error_and_the_next_request_is_served(
    rig: Rig, engine: HttpEngine, fault: Fault, stream: bool
):
    before = _plan(rig, fault)
    with pytest.raises(TYPED[fault]):
        await _ask(engine, stream=stream)
    assert _fired(rig, fault) == before + 1
    await _ask(engine, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", TYPED)
async def test_the_engine_in_process_fails_alike(fault: Fault, stream: bool):
    scripted = ScriptedEngine()
    scripted.faults.plan(fault, after=1)
    await _ask(scripted, stream=stream)
    with pytest.raises(TYPED[fault]):
        await _ask(scripted, stream=stream)
    assert scripted.faults.fired == {fault: 1}
    await _ask(scripted, stream=stream)


async def test_a_stream_without_tokens_has_stalled(rig: Rig, engine: HttpEngine):
    before = _plan(rig, Fault.HANG)
    started = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"no token for 0\.5 s"):
        await _ask(engine, stream=True)
    assert time.monotonic() - started < 30, "the answer itself would hang for ever"
    assert _fired(rig, Fault.HANG) == before + 1


async def test_slow_tokens_that_come_are_no_stall_and_slower_ones_are(rig: Rig, engine: HttpEngine):
    before = _plan(rig, Fault.SLOW, times=2)
    with pytest.raises(EngineUnavailable, match="no token"):
        await _ask(engine, stream=True)
    async with HttpEngine(rig.url, stall_s=2.5) as patient:
        async for delta in patient.stream(_request()):
            assert delta.token_ids
            break
    assert _fired(rig, Fault.SLOW) == before + 2


async def test_a_generation_has_a_deadline(rig: Rig):
    before = _plan(rig, Fault.HANG)
    async with HttpEngine(rig.url, timeout_s=0.3) as hasty:
        with pytest.raises(EngineUnavailable, match=r"longer than 0\.3 s"):
            await hasty.generate(_request())
    assert _fired(rig, Fault.HANG) == before + 1


async def test_an_engine_that_is_not_there_is_unavailable_at_once():
    started = time.monotonic()
    async with HttpEngine(f"http://127.0.0.1:{free_port()}") as nobody:
        for ask in (nobody.generate(_request()), nobody.score([1, 2, 3], 1), nobody.health(), nobody.version()):
            with pytest.raises(EngineUnavailable):
                await ask
    assert time.monotonic() - started < 30, "each has two minutes where somebody listens"


async def test_an_update_that_fails_leaves_the_engine_running(rig: Rig, engine: HttpEngine, tmp_path: Path):
    with pytest.raises(EngineRejected, match="no directory"):
        await engine.update_weights(tmp_path / "nothing", 5)
    assert await engine.version() == 0
    await asyncio.wait_for(engine.generate(_request()), 2)


async def test_an_update_whose_caller_is_cancelled_is_carried_out(rig: Rig, engine: HttpEngine):
    task = asyncio.create_task(engine.update_weights(rig.next_dir, 6))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    deadline = time.monotonic() + 5
    while await engine.version() != 6:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert (await asyncio.wait_for(engine.generate(_request()), 2)).policy_versions[0] == 6
    await engine.update_weights(rig.first_dir, 0)


async def test_updates_do_not_overlap(rig: Rig, engine: HttpEngine):
    await asyncio.gather(*(engine.update_weights(rig.next_dir, version) for version in range(1, 6)))
    assert await engine.version() == 5
    await engine.update_weights(rig.first_dir, 0)


async def test_an_engine_whose_publisher_died_in_a_swap_can_be_resumed(rig: Rig, engine: HttpEngine):
    assert rig.post("/pause_generation", {"mode": "retract"}).status_code == 200
    waiting = asyncio.create_task(engine.generate(_request()))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    async with HttpEngine(rig.url) as successor:
        await successor.resume()
    assert (await asyncio.wait_for(waiting, 2)).token_ids


async def test_many_at_once_share_one_session(engine: HttpEngine):
    completions = await asyncio.gather(*(engine.generate(_request()) for _ in range(6)))
    assert [completion.finish_reason for completion in completions].count("stop") > 0
