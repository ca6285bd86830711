"""`python -m openclaw.server` as a process: starting, attaching, stopping, an engine that dies, one-line refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from server_rig import listening, until
from slime.engines.launch import free_port
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.script import Script
from slime.engines.scripted.server import ScriptedApp
from slime.store import Store

pytestmark = pytest.mark.slow  # every test starts a process that imports torch

HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30}
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("OPENCLAW_")}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "openclaw.server", *flags]


def refused(*flags: str, **variables: str) -> str:
    """The one line with which the server refuses to start."""
    run = subprocess.run(command(*flags), capture_output=True, text=True, timeout=60, env=ENVIRONMENT | variables)
    assert run.returncode == 2, run.stderr
    *_, line = run.stderr.strip().splitlines()
    assert line.startswith("python -m openclaw.server: error: ")
    return line


class Server:
    """A running server process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.http = httpx.AsyncClient(base_url=url, timeout=60)

    async def is_ready(self) -> bool:
        assert self.process.returncode is None
        with contextlib.suppress(httpx.TransportError):
            return (await self.http.get("/readyz")).status_code == 200
        return False


@contextlib.asynccontextmanager
async def serving(model_dir: Path, buffer_dir: Path, *flags: str) -> AsyncIterator[Server]:
    port = free_port()
    flags = ("--model-path", str(model_dir), "--port", str(port), "--rl-buffer-dir", str(buffer_dir), *flags)
    process = await asyncio.create_subprocess_exec(*command("--enable-rl-intercept", *flags), env=ENVIRONMENT)
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        await until(server.is_ready, 90)
        yield server
    finally:
        await server.http.aclose()
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_a_wrong_model_directory_is_named() -> None:
    assert "--model-path /no/such" in refused("--model-path", "/no/such")


def test_an_unknown_flag_gets_the_nearest_one() -> None:
    assert "--model-path" in refused("--model-pth", "x")


def test_other_machines_are_not_served_without_a_key(model_dir: Path) -> None:
    assert "OPENCLAW_API_KEY" in refused("--model-path", str(model_dir), OPENCLAW_HOST="0.0.0.0")


def test_a_port_in_use_is_named(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in refused("--model-path", str(model_dir), "--port", port, "--engine-url", "http://127.0.0.1:9")


def test_a_buffer_in_use_is_named(model_dir: Path, tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    flags = (
        "--model-path",
        str(model_dir),
        "--port",
        "0",
        "--engine-url",
        "http://127.0.0.1:9",
        "--enable-rl-intercept",
    )
    assert "another server" in refused(*flags, "--rl-buffer-dir", str(tmp_path))
    asyncio.run(store.close())


async def test_sigterm_finishes_what_runs_and_ends_with_zero(model_dir: Path, tmp_path: Path) -> None:
    core = ScriptedCore(Script(["Hello there, how are you today?"], model_dir), token_delay_s=0.05)
    async with listening(ScriptedApp(core)) as engine, serving(model_dir, tmp_path, "--engine-url", engine) as server:
        running = asyncio.create_task(server.http.post("/v1/chat/completions", json=HI | {"stream": True}))
        await until(lambda: bool(core.requests))
        server.process.terminate()
        assert (await running).text.endswith("data: [DONE]\n\n")
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
    store = Store.open(tmp_path, appends=False)
    assert len(await store.recent(10)) == 1
    await store.close()


async def test_a_second_signal_does_not_wait(model_dir: Path, tmp_path: Path) -> None:
    core = ScriptedCore(Script(["Hello there"], model_dir), token_delay_s=30)
    async with listening(ScriptedApp(core)) as engine, serving(model_dir, tmp_path, "--engine-url", engine) as server:
        running = asyncio.create_task(server.http.post("/v1/chat/completions", json=HI))
        await until(lambda: bool(core.requests))
        server.process.terminate()
        await asyncio.sleep(0.5)
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 20) == 0, "the running reply would take 30 s"
        with contextlib.suppress(httpx.HTTPError):
            await running


async def test_kill_nine_loses_no_acknowledged_turn(model_dir: Path, tmp_path: Path) -> None:
    core = ScriptedCore(Script(["Hello there."], model_dir))
    acknowledged: list[str] = []
    async with listening(ScriptedApp(core)) as engine:
        async with serving(model_dir, tmp_path, "--engine-url", engine) as server:

            async def talk(number: int) -> None:
                with contextlib.suppress(httpx.HTTPError):
                    for turn in range(1000):
                        message = {"role": "user", "content": f"Hi {number} {turn}"}
                        response = await server.http.post("/v1/chat/completions", json=HI | {"messages": [message]})
                        assert response.json()["openclaw"]["capture"] == "stored"
                        acknowledged.append(response.json()["openclaw"]["turn"])

            talks = [asyncio.create_task(talk(number)) for number in range(8)]
            await until(lambda: len(acknowledged) > 40, 30)
            server.process.kill()
            await asyncio.wait(talks, timeout=20)
        async with serving(model_dir, tmp_path, "--engine-url", engine) as server:
            assert (await server.http.post("/v1/chat/completions", json=HI)).status_code == 200
    store = Store.open(tmp_path, appends=False)
    stored = [turn.turn_id for turn in await store.recent(100_000)]
    await store.close()
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))


async def test_its_own_engine_is_started_restarted_and_ended(tmp_path: Path, repository: Path) -> None:
    sys.path.insert(0, str(repository / "tests" / "engines"))
    from random_model import build_random_model

    model_dir = build_random_model(tmp_path / "model")
    buffer_dir = tmp_path / "buffer"
    async with serving(model_dir, buffer_dir, "--device", "cpu") as server:
        assert (await server.http.post("/v1/chat/completions", json=HI)).json()["usage"]["completion_tokens"] > 0
        (first,) = engines_of(server.process.pid)
        os.kill(first, signal.SIGKILL)
        reply = await server.http.post("/v1/chat/completions", json=HI)
        assert reply.status_code == 200, reply.text
        (second,) = engines_of(server.process.pid)
        assert second != first
        server.process.kill()
        await server.process.wait()
        await until(lambda: not Path(f"/proc/{second}").exists(), 10)


def engines_of(pid: int) -> list[int]:
    """The engine processes that a server has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]
