"""The policy engines of a run: placed, supervised, and kept at the published version (weight sync).

publish(weights, version) ─▶ every engine that is up         an engine that was down starts with them
publish(adapter, version) ─▶ beside the base, the same way
                             one refuses ─▶ those that took it go back, and the publication has failed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime.cluster.children import Child, EngineActor
from slime.config import EngineConfig, ModelConfig
from slime.config.gpus import compute_device
from slime.config.sections import LoraConfig
from slime.engines.backends import backend_named
from slime.engines.client import HttpEngine
from slime.engines.launch import free_port
from slime.errors import EngineError, EngineRejected, EngineUnavailable
from slime.weights.adapters import is_adapter
from slime.weights.directories import read_manifest

log = logging.getLogger(__name__)

_POLL_S = 0.2
_LOOK_EVERY_S = 5.0


class Fleet:
    """Engines that all serve the same weights.

    Args:
        gpus: what each engine may see; one entry an engine, empty = the CPU.
        attached: engines that run already, in place of own ones; whoever started them keeps them running.
        lora: of the adapters that will be published.
    """

    def __init__(
        self,
        model: ModelConfig,
        engine: EngineConfig,
        gpus: tuple[str, ...],
        log_dir: Path,
        attached: tuple[str, ...] = (),
        lora: LoraConfig = LoraConfig(),
    ) -> None:
        self._model = model
        self._config = engine
        self._lora = lora
        self._backend = backend_named(engine.backend)
        self._published: tuple[Path, int] | None = None
        self._adapters: dict[str, tuple[Path, int]] = {}
        self._handed: dict[int, set[Path]] = {}
        ports = [] if attached else [free_port() for _ in gpus]
        self.urls = list(attached) or [f"http://127.0.0.1:{port}" for port in ports]
        self.clients = [
            HttpEngine(
                url,
                token=engine.engine_token,
                timeout_s=engine.engine_timeout_s,
                stall_s=engine.generation_stall_s,
                pause_mode=self._backend.pause_mode,
            )
            for url in self.urls
        ]
        self.children = [
            self._child(index, port, devices, log_dir / f"engine-{index}.log")
            for index, (port, devices) in enumerate(zip(ports, gpus, strict=bool(ports)))
        ]

    def _child(self, index: int, port: int, gpus: str, log_path: Path) -> Child:
        def arguments() -> tuple[Any, ...]:
            weights_dir, version = self._published or self._given
            self._hand(index, weights_dir, *(adapter_dir for adapter_dir, _ in self._adapters.values()))
            device = self._model.device if gpus else "cpu"  # "auto" would find GPUs that are somebody else's
            model = replace(self._model, model_path=str(weights_dir), device=device)
            flags = self._backend.adapter_flags(
                self._lora, self._adapters, is_cpu=compute_device(model.device) == "cpu"
            )
            return model, self._config, str(log_path), port, gpus, ("--weight-version", str(version), *flags)

        return Child(f"engine {index}", EngineActor, arguments, lambda: self._catch_up(index))

    @property
    def _given(self) -> tuple[Path, int]:
        return Path(self._model.model_path), 0

    async def start(self) -> None:
        """Returns when every engine generates. Raises EngineUnavailable when one does not."""
        await asyncio.gather(*(child.start() for child in self.children))
        if not self.children:
            await asyncio.gather(*(client.health() for client in self.clients))

    async def publish(self, weights_dir: Path, version: int) -> None:
        """Have every engine serve these weights; returns when those that are up do, and at least one is.

        An adapter is served beside the base to requests that name it; its name and version are in its manifest.
        While none is up the trainer waits here: it must not run ahead of what is sampled.

        Raises:
            EngineRejected: an engine refused the weights. Those that had taken them were brought back: all serve what
                they served before.
            EngineUnavailable: none came up in the time that starting one may take.
        """
        before = self._published, self._adapters
        if is_adapter(weights_dir):
            self._adapters = self._adapters | _by_name(weights_dir)
        else:
            self._published = weights_dir, version
        deadline = time.monotonic() + self._config.engine_start_timeout_s
        while True:
            outcomes = await asyncio.gather(
                *(self._catch_up(index) for index in range(len(self.clients))), return_exceptions=True
            )
            for url, outcome in zip(self.urls, outcomes, strict=True):
                if isinstance(outcome, EngineRejected):
                    self._published, self._adapters = before
                    await self._withdraw(weights_dir, version)
                    raise EngineRejected(
                        f"{url} refused version {version}, which is withdrawn from all engines: {outcome}",
                        outcome.status,
                    )
                if not isinstance(outcome, EngineError | None):
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
        """Bring one engine to the published versions, whatever it serves."""
        client, published, adapters = self.clients[index], self._published, dict(self._adapters)
        current = [adapter_dir for adapter_dir, _ in adapters.values()]
        if published is not None:
            weights_dir, version = published
            current.append(weights_dir)
            if await client.version() != version:
                self._hand(index, weights_dir)
                await client.update_weights(weights_dir, version)
        loaded = await client.adapters() if adapters else {}
        for name, (adapter_dir, version) in adapters.items():
            if version not in loaded.get(name, []):
                self._hand(index, adapter_dir)
                await client.load_adapter(name, adapter_dir, version)
        self._handed[index] = set(current)

    def _hand(self, index: int, *directories: Path) -> None:
        self._handed.setdefault(index, set()).update(directories)

    def in_use(self) -> frozenset[Path]:
        """Directories that an engine serves, or was told to load and has not said it serves."""
        return frozenset(path for directories in self._handed.values() for path in directories)

    async def newest_version(self) -> int:
        """The highest version that an engine which is up knows, whoever published it; 0 if none is up."""
        versions = [0]
        for client in self.clients:
            with contextlib.suppress(EngineUnavailable):
                loaded = await client.adapters() if self._lora.use_lora else {}
                versions += [await client.version(), *(version for found in loaded.values() for version in found)]
        return max(versions)

    async def _withdraw(self, weights_dir: Path, version: int) -> None:
        """Have no engine serve a publication that one of them refused; what cannot be reached starts without it."""
        names = _by_name(weights_dir) if is_adapter(weights_dir) else {}
        outcomes = await asyncio.gather(
            *(self._take_back(client, version, names) for client in self.clients), return_exceptions=True
        )
        for url, outcome in zip(self.urls, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                log.error("engine may still serve what was withdrawn url=%s version=%d error=%s", url, version, outcome)
            elif outcome is not None:
                raise outcome

    async def _take_back(self, client: HttpEngine, version: int, names: Mapping[str, tuple[Path, int]]) -> None:
        if not names:
            earlier_dir, earlier = self._published or self._given
            if await client.version() == version:
                await client.update_weights(earlier_dir, earlier)
            return
        loaded = await client.adapters()
        for name, (_, withdrawn) in names.items():
            if withdrawn in loaded.get(name, []):
                await client.unload_adapter(name, withdrawn)

    async def supervise(self) -> None:
        """Own engines are started again when they end; attached ones, however they come back, get what is published."""
        if self.children:
            await asyncio.gather(*(child.supervise() for child in self.children))
        while not self.children:
            await asyncio.sleep(_LOOK_EVERY_S)
            for index in range(len(self.clients)):
                with contextlib.suppress(EngineUnavailable):  # it is away; the next look may find it
                    await self._catch_up(index)

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.children))
        for client in self.clients:
            await client.close()


def _by_name(adapter_dir: Path) -> dict[str, tuple[Path, int]]:
    """An adapter's absolute directory and version, by its name."""
    manifest = read_manifest(adapter_dir)
    return {manifest.adapter: (adapter_dir.resolve(), manifest.version)}
