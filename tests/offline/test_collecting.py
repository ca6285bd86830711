"""Collecting: what one process's server stores comes, as it grows, into the store that a trainer reads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from slime.errors import ConfigError
from slime.rollout.collecting import SERVING_FILE, Serving, ask, collect, training_flags
from slime.store import Store
from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, TurnState, VersionSpan


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def turn(name: str, parent: Turn | None = None) -> Turn:
    history = () if parent is None else (*parent.messages, parent.reply)
    return Turn(
        turn_id=name,
        session_id="s",
        parent_id=None if parent is None else parent.turn_id,
        kind=TurnKind.MAIN,
        messages=(*history, user(name)),
        prompt_ids=(1, 2),
        completion=Completion((3, 4), (-0.25, -1 / 3), "hi", "stop", (VersionSpan(0, 0, 2),)),
        sampling=SamplingParams(),
        reply={"role": "assistant", "content": f"hi {name}"},
    )


@pytest.fixture
async def captured(tmp_path: Path):
    async with Store.open(tmp_path / "captured") as store:
        yield store


@pytest.fixture
async def server(captured: Store, tmp_path: Path):
    """The address of something that answers /v1/models as our server does, and what it says of itself."""
    model: dict[str, object] = {"id": "tiny", "openclaw": said(captured)}

    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer key":
            return web.Response(status=401)
        return web.json_response({"data": [model]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}", model
    await runner.cleanup()


def said(captured: Store) -> dict[str, object]:
    return {
        "model_path": "/models/tiny",
        "rl_buffer_dir": str(captured.path.parent),
        "engine_urls": ["http://127.0.0.1:40001"],
    }


async def test_what_comes_later_is_collected_too_and_nothing_twice(captured: Store, tmp_path: Path):
    serving = Serving("http://localhost:8000", "/models/tiny", str(captured.path.parent), ("http://127.0.0.1:1",))
    first = turn("a")
    second = turn("b", first)
    await captured.append(first)
    assert await collect(serving, tmp_path / "out", forever=False) == 1
    await captured.append(second, next_state_of=("a", (user("b"),)))
    assert await collect(serving, tmp_path / "out", forever=False) == 1
    await captured.attach("b", (user("bye"),))
    assert await collect(serving, tmp_path / "out", forever=False) == 0
    async with Store.open(tmp_path / "out", appends=False) as collected:
        assert await collected.session("s") == await captured.session("s")
        assert (await collected.counts())[TurnState.READY] == 2
        assert await collected.next_states("b") == [(None, (user("bye"),))]


async def test_a_collector_that_runs_notices_new_turns(captured: Store, tmp_path: Path):
    serving = Serving("http://localhost:8000", "/models/tiny", str(captured.path.parent), ())
    collecting = asyncio.create_task(collect(serving, tmp_path / "out"))
    try:
        async with asyncio.timeout(20):
            while not (tmp_path / "out" / SERVING_FILE).exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await captured.append(turn("a"))
            async with Store.open(tmp_path / "out", appends=False) as collected:
                while await collected.get("a") is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def test_a_server_says_where_its_turns_and_engines_are(server, captured: Store):
    url, model = server
    for spelling in (url, url + "/", url + "/v1", url + "/v1/"):
        serving = await ask(spelling, "key")
        assert serving == Serving(url, "/models/tiny", str(captured.path.parent), ("http://127.0.0.1:40001",))
    with pytest.raises(ConfigError, match="answers 401; is OPENCLAW_API_KEY its key"):
        await ask(url, "wrong")
    model["openclaw"] = said(captured) | {"rl_buffer_dir": "/nowhere"}
    with pytest.raises(ConfigError, match="/nowhere is not on this machine"):
        await ask(url, "key")
    del model["openclaw"]
    with pytest.raises(ConfigError, match="captures nothing: start it with --enable-rl-intercept"):
        await ask(url, "key")


async def test_a_run_trains_beside_a_server_that_runs_and_offline_without(server, captured: Store, tmp_path: Path):
    url, _ = server
    rollouts = tmp_path / "rollouts"
    assert await training_flags(rollouts) == ["--data-path", str(rollouts)]
    await collect(await ask(url, "key"), rollouts, forever=False)
    assert await training_flags(rollouts, "key") == [
        *("--model-path", "/models/tiny", "--rl-buffer-dir", str(rollouts)),
        *("--engine-url", "http://127.0.0.1:40001", "--no-serve"),
    ]
    known = json.loads((rollouts / SERVING_FILE).read_text())
    (rollouts / SERVING_FILE).write_text(json.dumps(known | {"api_endpoint": "http://127.0.0.1:9"}))
    assert await training_flags(rollouts) == ["--model-path", "/models/tiny", "--data-path", str(rollouts)]
    (rollouts / SERVING_FILE).write_text("{}")
    with pytest.raises(ConfigError, match=r"not what collect_rollouts\.py writes"):
        await training_flags(rollouts)
