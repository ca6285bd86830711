"""Engines that we start listen behind a token, and the token stands where only its owner reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from random_model import build_random_model
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.client import HttpEngine
from slime.engines.door import behind_token
from slime.engines.launch import start_engine, with_token
from slime.errors import EngineRejected
from slime.protocols import GenerateRequest
from slime.types import SamplingParams

POSTS = ("/generate", "/pause_generation", "/continue_generation", "/update_weights_from_disk", "/abort_request")
POSTS += ("/load_lora_adapter", "/unload_lora_adapter", "/flush_cache")
GETS = ("/model_info", "/server_info", "/v1/models")


def processes_below(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from processes_below(int(child))


def shown_of(pid: int) -> bytes:
    """What `ps` shows of a process and of those below it."""
    return b"".join(
        Path(f"/proc/{one}/cmdline").read_bytes() + Path(f"/proc/{one}/environ").read_bytes()
        for one in processes_below(pid)
    )


@pytest.mark.parametrize("backend", ["scripted", pytest.param("embedded", marks=pytest.mark.slow)])
async def test_an_engine_of_ours_does_nothing_for_those_without_its_token(backend: Any, tmp_path: Path) -> None:
    await check_door(backend, tmp_path, with_token(EngineConfig()))


async def check_door(
    backend: Any, work_dir: Path, engine: EngineConfig, environment: Mapping[str, str] | None = None
) -> None:
    """Start an engine behind its token and knock without."""
    model = ModelConfig(model_path=str(build_random_model(work_dir / "model")), device="cpu", dtype="float32")
    log_path = work_dir / "logs" / "engine.log"
    process = await start_engine(model, engine, backend=backend, log_path=log_path, environment=environment)
    try:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": engine.engine_token}):
            async with httpx.AsyncClient(base_url=process.url, headers=headers, timeout=20) as stranger:
                answers = [await stranger.post(path, json={}) for path in POSTS]
                answers += [await stranger.get(path) for path in GETS]
                assert {answer.status_code for answer in answers} == {401}
        async with HttpEngine(process.url) as stranger_engine:
            with pytest.raises(EngineRejected, match="ENGINE_TOKEN"):
                await stranger_engine.version()
        async with HttpEngine(process.url, token=engine.engine_token) as ours:
            sampling = SamplingParams(max_new_tokens=2)
            assert (await ours.generate(GenerateRequest("r", (1, 2, 3), sampling))).token_ids
        assert engine.engine_token.encode() not in shown_of(process.process.pid)
        assert [path.name for path in log_path.parent.iterdir()] == ["engine.log"]
        assert log_path.stat().st_mode & 0o777 == 0o600
        assert log_path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        await process.stop()


async def test_a_door_lets_a_probe_see_that_somebody_is_at_home() -> None:
    async def home(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"in"})

    transport = httpx.ASGITransport(behind_token(home, "t"))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert (await client.get("/health")).text == "in"
        assert (await client.get("/health_generate")).status_code == 401
        assert (await client.get("/x", headers={"authorization": "Bearer t"})).text == "in"


def test_a_drawn_token_is_never_drawn_twice_and_a_given_one_stays() -> None:
    drawn = {with_token(EngineConfig()).engine_token for _ in range(100)}
    assert len(drawn) == 100
    assert min(map(len, drawn)) >= 43
    assert with_token(EngineConfig(engine_token="mine")).engine_token == "mine"
