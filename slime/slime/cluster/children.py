"""Supervised processes as Ray actors: each holds one engine, or the server, and reports its end.

    Child (in the driver) ─▶ actor on some node ─▶ process
        supervise: process or actor died ─▶ start again, within a budget

The process is tied to its actor and the actor to the driver, so that nothing is left over whichever of
them is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import ray
from ray.exceptions import ActorDiedError, RayError

from slime.config.leaves import as_flags
from slime.config.sections import Config, EngineConfig, ModelConfig
from slime.engines.launch import end_process, free_port, start_engine, start_process
from slime.engines.supervisor import Supervisor
from slime.errors import EngineKilled, EngineUnavailable

log = logging.getLogger(__name__)

_GRACE_S = 35.0
_SERVER_START_S = 60.0


async def start_engine_process(
    model: ModelConfig, engine: EngineConfig, log_path: Path, port: int, gpus: str, flags: tuple[str, ...]
) -> asyncio.subprocess.Process:
    """An engine that generates, started with further flags."""
    started = await start_engine(model, engine, log_path=log_path, port=port, gpus=gpus, extra_args=flags)
    return started.process


class Holder:
    """Holds a process of ours."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, start: Callable[..., Awaitable[asyncio.subprocess.Process]], *arguments: Any) -> int:
        """Start it by a function; returns its pid."""
        self._process = await start(*arguments)
        return self._process.pid

    async def wait(self) -> int:
        """Its exit status, when it ends."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to its process group after `_GRACE_S`."""
        if self._process is not None:
            await end_process(self._process, _GRACE_S)


Actor: Any = ray.remote(num_cpus=0)(Holder)


class Child(Supervisor):
    """One supervised process.

    Args:
        name: for the log: `engine 0`, `server`.
        command: gives the function that starts it, e.g. `launch.start_process`, and its arguments; anew at every start,
            so that it starts with what is true then.
        is_up: returns when the started process does its work; raises EngineUnavailable if it never does.
    """

    def __init__(self, name: str, command: Callable[[], tuple[Any, ...]], is_up: Callable[[], Awaitable[None]]) -> None:
        super().__init__(name, self._start_once, self._ended)
        self.name = name
        self.command = command
        self._is_up = is_up
        self._actor: Any = None

    async def _start_once(self) -> None:
        """Start it in a new actor.

        If what it was to start with changed meanwhile (weights are pruned as newer ones are published), it is
        started once more with what is true now.
        """
        began = time.monotonic()
        while True:
            command = self.command()
            self._actor = Actor.remote()
            try:
                pid = await self._actor.start.remote(*command)
                await self._up_or_ended()
                break
            except (EngineKilled, ActorDiedError) as error:
                ray.kill(self._actor)
                raise EngineKilled(last_line(error)) from None
            except (RayError, EngineUnavailable) as error:
                ray.kill(self._actor)
                if command == self.command():
                    raise EngineUnavailable(f"{self.name} does not start: {last_line(error)}") from None
                log.warning("%s did not start, trying with newer weights error=%s", self.name, last_line(error))
        log.info("%s ready pid=%d seconds=%.1f", self.name, pid, time.monotonic() - began)

    async def _up_or_ended(self) -> None:
        """Returns when it does its work. Raises EngineUnavailable, or EngineKilled, when it ended before."""
        is_up = asyncio.ensure_future(self._is_up())
        ended = asyncio.ensure_future(_settled(self._actor.wait.remote()))
        try:
            await asyncio.wait([is_up, ended], return_when=asyncio.FIRST_COMPLETED)
            if is_up.done():
                return is_up.result()
            status = ended.result()
        finally:
            is_up.cancel()
            ended.cancel()
        kind = EngineKilled if status < 0 else EngineUnavailable
        raise kind(f"{self.name} ended with status {status} while it was starting")

    async def _ended(self) -> str:
        try:
            ended = f"status={await self._actor.wait.remote()}"
        except RayError as error:  # the actor itself was killed, and its process with it
            ended = f"error={last_line(error)}"
        ray.kill(self._actor)
        return ended

    async def stop(self) -> None:
        if self._actor is None:
            return
        try:
            await asyncio.wait_for(_settled(self._actor.stop.remote()), _GRACE_S + 5)
        except (RayError, TimeoutError) as error:
            log.warning("%s did not stop cleanly error=%s", self.name, last_line(error))
        ray.kill(self._actor)


def server(config: Config, engine_urls: Sequence[str], log_dir: Path) -> Child:
    """The OpenAI-compatible server in front of the engines, not started; it captures: a training run needs turns."""
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
            async with asyncio.timeout(_SERVER_START_S):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.1)
    raise EngineUnavailable(f"the server did not answer at {url} within {_SERVER_START_S:g} s; see logs/server.log")


async def _settled(reference: Any) -> Any:
    return await reference


def last_line(error: BaseException) -> str:
    """The end of a Ray error's text, which is where it says what happened."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


async def run_beside(
    work: Coroutine[Any, Any, None], *supervising: Coroutine[Any, Any, None], keep_serving: bool
) -> None:
    """Run a pipeline to its end beside its processes, and go on serving if asked.

    Raises:
        Exception: what ended the pipeline, or `EngineUnavailable` where a process cannot be kept alive.
    """
    tasks = [asyncio.create_task(each) for each in (work, *supervising)]
    training, *watchers = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if training.done() and training.exception() is None:
            log.info("training done")
            if keep_serving:
                await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
