"""The OpenAI-compatible server of a run: a process of its own, in front of the engines, restarted when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp

from slime.cluster.children import Child
from slime.config import Config
from slime.config.leaves import as_flags
from slime.engines.launch import free_port, start_process
from slime.errors import EngineUnavailable

log = logging.getLogger(__name__)

_START_S = 60.0


def server(config: Config, engine_urls: Sequence[str], log_dir: Path) -> Child:
    """The server, not started; it captures, which is what a training run starts one for."""
    port = config.server.port or free_port()
    serving = replace(
        config,
        engine=replace(config.engine, engine_url=",".join(engine_urls)),
        server=replace(config.server, port=port, enable_rl_intercept=True),
    )
    command = [sys.executable, "-m", "openclaw.server", *as_flags(serving, ["model", "engine", "server", "lora"])]
    secrets = {
        "OPENCLAW_API_KEY": config.server.api_key,
        "OPENCLAW_ADMIN_KEY": config.server.admin_key,
        "ENGINE_TOKEN": config.engine.engine_token,
    }
    url = f"http://{config.server.host}:{port}"

    async def is_up() -> None:
        await _until_ready(f"{url}/readyz")
        log.info("serving url=%s/v1", url)

    return Child("server", lambda: (start_process, command, log_dir / "server.log", secrets), is_up)


async def _until_ready(url: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.1)
    raise EngineUnavailable(f"the server did not answer at {url} within {_START_S:g} s; see logs/server.log")
