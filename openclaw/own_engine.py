"""Supervises the server's own engine: starts it in the background, restarts it on failure, stops it with the server.

While it starts, requests wait in the engine pool. A restarted engine serves the initial model (policy version 0) and
labels its tokens so, until newer weights are published to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.launch import EngineProcess, start_engine
from slime.engines.supervisor import Supervisor

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 5.0


class OwnEngine:
    """Runs one engine on `port`."""

    def __init__(self, model: ModelConfig, config: EngineConfig, port: int, log_path: Path) -> None:
        self._model = model
        self._config = config
        self._port = port
        self._log_path = log_path
        self._engine: EngineProcess | None = None

    async def run(self) -> None:
        """Run until cancelled. Raises EngineUnavailable when the engine does not start or keeps crashing."""
        supervisor = Supervisor("engine", self._start, self._wait)
        try:
            await supervisor.start()
            await supervisor.supervise()
        finally:
            if self._engine is not None:
                await self._engine.stop()

    async def _start(self) -> None:
        began = time.monotonic()
        progress = asyncio.create_task(_report_progress())
        try:
            started = start_engine(
                self._model, self._config, log_path=self._log_path, port=self._port, gpus=self._config.engine_gpus
            )
            self._engine = await started
        finally:
            progress.cancel()
        seconds = time.monotonic() - began
        log.info("engine ready url=%s pid=%d seconds=%.1f", self._engine.url, self._engine.process.pid, seconds)

    async def _wait(self) -> str:
        assert self._engine is not None
        status = await self._engine.process.wait()
        await self._engine.stop()  # reap the rest of its process group
        return f"status={status} log={self._log_path}"


async def _report_progress() -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(_PROGRESS_EVERY_S)
        log.info("engine starting seconds=%.0f", time.monotonic() - began)
