"""The policy engines of a run: placed, supervised, and brought to every version that is published.

publish(weights, version) ─▶ every engine that is up         an engine that was down starts with them
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime.cluster.children import Child, EngineActor
from slime.config import EngineConfig, ModelConfig
from slime.engines.client import HttpEngine
from slime.engines.launch import free_port
from slime.errors import EngineError, EngineRejected, EngineUnavailable

log = logging.getLogger(__name__)

_POLL_S = 0.2


class Fleet:
    """Engines that all serve the same weights.

    Args:
        gpus: what each engine may see; one entry an engine, empty = the CPU.
    """

    def __init__(self, model: ModelConfig, engine: EngineConfig, gpus: tuple[str, ...], log_dir: Path) -> None:
        self._model = model
        self._config = engine
        self._published: tuple[Path, int] | None = None
        ports = [free_port() for _ in gpus]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.clients = [
            HttpEngine(
                url,
                timeout_s=engine.engine_timeout_s,
                stall_s=engine.generation_stall_s,
                pause_mode=None if engine.backend == "embedded" else "retract",
            )
            for url in self.urls
        ]
        self.children = [
            self._child(index, port, devices, log_dir / f"engine-{index}.log")
            for index, (port, devices) in enumerate(zip(ports, gpus, strict=True))
        ]

    def _child(self, index: int, port: int, gpus: str, log_path: Path) -> Child:
        def arguments() -> tuple[Any, ...]:
            weights_dir, version = self._published or (Path(self._model.model_path), 0)
            return replace(self._model, model_path=str(weights_dir)), self._config, str(log_path), port, gpus, version

        return Child(f"engine {index}", EngineActor, arguments, lambda: self._catch_up(index))

    async def start(self) -> None:
        await asyncio.gather(*(child.start() for child in self.children))

    async def publish(self, weights_dir: Path, version: int) -> None:
        """Have every engine serve these weights; returns when those that are up do, and at least one is.

        While none is up the trainer waits here: it must not run ahead of what is sampled.

        Raises:
            EngineRejected: an engine refused the weights and serves the earlier ones; they must not go live anywhere.
            EngineUnavailable: none came up in the time that starting one may take.
        """
        before, self._published = self._published, (weights_dir, version)
        deadline = time.monotonic() + self._config.engine_start_timeout_s
        while True:
            outcomes = await asyncio.gather(
                *(self._catch_up(index) for index in range(len(self.clients))), return_exceptions=True
            )
            for outcome in outcomes:
                if isinstance(outcome, EngineRejected):
                    self._published = before
                if isinstance(outcome, EngineRejected) or not isinstance(outcome, EngineError | None):
                    raise outcome
            missing = [url for url, outcome in zip(self.urls, outcomes, strict=True) if outcome is not None]
            if len(missing) < len(self.urls):
                for url in missing:  # it is down, and starts again with these weights
                    log.warning("engine missed a publication url=%s version=%d", url, version)
                return
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"no engine came up to serve version {version}")
            await asyncio.sleep(_POLL_S)

    async def _catch_up(self, index: int) -> None:
        """Bring one engine to the published version, whatever it serves."""
        if self._published is None:
            return
        weights_dir, version = self._published
        if await self.clients[index].version() != version:
            await self.clients[index].update_weights(weights_dir, version)

    async def supervise(self) -> None:
        await asyncio.gather(*(child.supervise() for child in self.children))

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.children))
        for client in self.clients:
            await client.close()
