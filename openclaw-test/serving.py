"""Serves a model directory for an evaluation: starts an engine and our server, and stops both with the context.

model directory ─▶ start_engine ─▶ HttpEngine (for log-probs)
                         └─▶ python -m openclaw.server --engine-url … ─▶ an OpenAI client
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from openai import APIError, AsyncOpenAI, OpenAIError
from openclaw_test.training_run import last_lines
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.client import HttpEngine
from slime.engines.launch import dying_with_parent, free_port, start_engine, with_token
from slime.errors import ConfigError, EngineUnavailable

_START_S = 120.0
_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class Served:
    """A served model.

    Attributes:
        model: its name on the server.
        engine: for scoring tokens; None for an attached server.
        is_ours: whether it is our server, which tells users apart by their keys.
    """

    client: AsyncOpenAI
    model: str
    engine: HttpEngine | None
    is_ours: bool


@contextlib.asynccontextmanager
async def running_engine(
    model_dir: Path, log_path: Path, config: EngineConfig, backend: str = ""
) -> AsyncIterator[HttpEngine]:
    """Run an engine on a model directory."""
    config = with_token(config)
    process = await start_engine(ModelConfig(model_path=str(model_dir)), config, log_path=log_path, backend=backend)
    try:
        async with HttpEngine(process.url, token=config.engine_token, timeout_s=config.engine_timeout_s) as engine:
            yield engine
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def serve_model(model_dir: Path, log_dir: Path, config: EngineConfig, backend: str = "") -> AsyncIterator[Served]:
    """Run engine and server on a model directory, without capture.

    Raises:
        EngineUnavailable: one of them did not start; the message ends with its log.
    """
    port = free_port()
    config = with_token(config)
    command = [sys.executable, "-m", "openclaw.server", "--model-path", str(model_dir), "--port", str(port)]
    async with running_engine(model_dir, log_dir / "engine.log", config, backend) as engine:
        log_path = log_dir / "server.log"
        with log_path.open("ab") as log:
            server = await asyncio.create_subprocess_exec(
                *dying_with_parent([*command, "--engine-url", engine.base_url]),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "ENGINE_TOKEN": config.engine_token},
            )
        try:
            await _until_ready(server, port, log_path)
            async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="local", max_retries=2) as client:
                yield Served(client, (await client.models.list()).data[0].id, engine, is_ours=True)
        finally:
            await _stop(server)


async def _until_ready(server: asyncio.subprocess.Process, port: int, log_path: Path) -> None:
    deadline = time.monotonic() + _START_S
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while time.monotonic() < deadline and server.returncode is None:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # not listening yet
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise EngineUnavailable(
        f"the server did not become ready within {_START_S:g} s; {log_path} ends:\n" + last_lines(log_path)
    )


async def _stop(server: asyncio.subprocess.Process) -> None:
    if server.returncode is None:
        server.terminate()
        try:
            await asyncio.wait_for(server.wait(), _STOP_S)
        except TimeoutError:
            server.kill()
            await server.wait()


@contextlib.asynccontextmanager
async def attached(base_url: str) -> AsyncIterator[Served]:
    """Connect to a running server; OPENAI_API_KEY is its key, if it needs one.

    Raises:
        ConfigError: the server does not respond.
    """
    async with openai_client(base_url) as client:
        try:
            models = await client.models.list()
        except APIError as error:
            raise ConfigError(f"--base-url {base_url}: {error}") from None
        yield Served(client, models.data[0].id, engine=None, is_ours=False)


def openai_client(base_url: str) -> AsyncOpenAI:
    """A client with the environment's OPENAI_API_KEY, else a placeholder that loopback servers accept."""
    try:
        return AsyncOpenAI(base_url=base_url, max_retries=5)
    except OpenAIError:
        return AsyncOpenAI(base_url=base_url, max_retries=5, api_key="local")
