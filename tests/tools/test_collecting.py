"""Collecting: what one process's server stores comes, as it grows, into the store that a trainer reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from slime.config.loader import resolve
from slime.engines.serving import SERVING_FILE, Serving
from slime.errors import ConfigError
from slime.preflight import _check_server_beside
from slime.store import Store
from slime.tools.collecting import collect, find, training_settings
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
async def server(captured: Store):
    """The address of something that answers as our server does and says beside its turns where things are."""

    async def healthy(request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    directory = captured.path.parent
    Serving(url, "/models/tiny", str(directory), ("http://127.0.0.1:40001",), "a token").write(directory)
    yield url
    await runner.cleanup()


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
                while (copy := await collected.get("a")) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert copy == await captured.get("a")
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def test_a_server_says_where_its_turns_and_engines_are_to_its_own_user_alone(server: str, captured: Store):
    directory = captured.path.parent
    assert (directory / SERVING_FILE).stat().st_mode & 0o777 == 0o600
    for spelling in (server, server + "/", server + "/v1", server + "/v1/"):
        serving = await find(spelling, directory)
        assert serving == Serving(server, "/models/tiny", str(directory), ("http://127.0.0.1:40001",), "a token")


async def test_a_server_that_is_not_the_one_asked_for_is_refused_in_one_line(
    server: str, captured: Store, tmp_path: Path
):
    directory = captured.path.parent
    with pytest.raises(ConfigError, match="no server of ours answers"):
        await find("http://127.0.0.1:9", directory)
    with pytest.raises(ConfigError, match="give --rl-buffer-dir as the server has it"):
        await find(server, tmp_path / "elsewhere")
    Serving("http://127.0.0.1:9", "/models/tiny", str(directory), ()).write(directory)
    with pytest.raises(ConfigError, match=r"are of the server at http://127\.0\.0\.1:9"):
        await find(server, directory)
    Serving(server, "/models/tiny", "/nowhere", ()).write(directory)
    with pytest.raises(ConfigError, match="give --rl-buffer-dir as the server has it, on its machine"):
        await find(server, directory)


async def test_a_run_trains_beside_a_server_that_runs_and_offline_without(server: str, captured: Store, tmp_path: Path):
    rollouts = tmp_path / "rollouts"
    assert await training_settings(rollouts) == (["--data-path", str(rollouts)], {})
    await collect(await find(server, captured.path.parent), rollouts, forever=False)
    assert (rollouts / SERVING_FILE).stat().st_mode & 0o777 == 0o600
    flags, unseen = await training_settings(rollouts)
    assert flags == [
        *("--model-path", "/models/tiny", "--rl-buffer-dir", str(rollouts)),
        *("--engine-url", "http://127.0.0.1:40001", "--no-serve"),
    ]
    assert unseen == {"engine.engine_token": "a token"}
    Serving("http://127.0.0.1:9", "/models/tiny", str(captured.path.parent), ()).write(rollouts)
    assert await training_settings(rollouts) == (["--model-path", "/models/tiny", "--data-path", str(rollouts)], {})
    (rollouts / SERVING_FILE).write_text("{}")
    with pytest.raises(ConfigError, match="not what a server of ours writes"):
        await training_settings(rollouts)


async def test_what_a_server_asks_is_what_is_trained_beside_it(server: str, captured: Store, tmp_path: Path):
    directory = captured.path.parent
    serving = await find(server, directory)
    beside = ["--model-path", "/models/tiny", "--rl-buffer-dir", str(directory), "--engine-url", "u", "--no-serve"]
    for adapter_per, contradicts in (
        ("", ["--use-lora"]),
        ("run", ["--no-use-lora"]),
        ("user", ["--adapter-per", "run"]),
    ):
        replace(serving, adapter_per=adapter_per).write(directory)
        _, unseen = await training_settings(directory)
        config = resolve(beside, {}, defaults=unseen).config
        assert config.lora.served_per == adapter_per
        _check_server_beside(config)
        with pytest.raises(ConfigError, match="would never ask for what this run trains"):
            _check_server_beside(resolve([*beside, *contradicts], {}, defaults=unseen).config)
