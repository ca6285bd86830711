"""The policy engines of a run: placed, supervised, and kept at the published version (weight sync).

publish(weights, version) ─▶ every engine that is up         an engine that was down starts with them
publish(adapter, version) ─▶ beside the base, the same way
                             one refuses ─▶ those that took it go back, and the publication has failed
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime.cluster.children import Child, start_engine_process
from slime.config.gpus import compute_device
from slime.config.sections import EngineConfig, LoraConfig, ModelConfig
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
        attached: URLs of engines that run already, in place of own ones; they are not started again from here.
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
        self._published: dict[str, tuple[Path, int]] = {}  # adapters by name, all weights under the empty name
        self._handed: defaultdict[int, set[Path]] = defaultdict(set)
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
        def command() -> tuple[Any, ...]:
            weights_dir, version = self._base
            adapters = {name: published for name, published in self._published.items() if name}
            self._handed[index] |= {weights_dir, *(adapter_dir for adapter_dir, _ in adapters.values())}
            device = self._model.device if gpus else "cpu"  # "auto" would find GPUs that are another process's
            model = replace(self._model, model_path=str(weights_dir), device=device)
            is_cpu = compute_device(model.device) == "cpu"
            flags = self._backend.adapter_flags(self._lora, adapters, is_cpu=is_cpu)
            flags = ("--weight-version", str(version), *flags)
            return start_engine_process, model, self._config, log_path, port, gpus, flags

        return Child(f"engine {index}", command, lambda: self._catch_up(index))

    @property
    def _base(self) -> tuple[Path, int]:
        return self._published.get("", (Path(self._model.model_path), 0))

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
        before, published = self._published, _by_name(weights_dir, version)
        self._published = before | published
        deadline = time.monotonic() + self._config.engine_start_timeout_s
        while True:
            failed = await self._with_each(self._catch_up)
            for url, error in failed.items():
                if isinstance(error, EngineRejected):
                    self._published = before
                    await self._withdraw(published)
                    raise EngineRejected(
                        f"{url} refused version {version}, which is withdrawn from all engines: {error}", error.status
                    )
            if len(failed) < len(self.urls):
                for url in failed:  # it is down, and starts again with these weights
                    log.warning("engine missed a publication url=%s version=%d", url, version)
                return
            if time.monotonic() > deadline:
                raise EngineUnavailable(f"no engine came up to serve version {version}")
            await asyncio.sleep(_POLL_S)

    async def _with_each(self, work: Callable[[int], Awaitable[None]]) -> dict[str, EngineError]:
        """Do this with every engine at once; the errors of those that could not, by URL."""
        outcomes = await asyncio.gather(*(work(index) for index in range(len(self.clients))), return_exceptions=True)
        for outcome in outcomes:
            if not isinstance(outcome, EngineError | None):
                raise outcome
        return {url: error for url, error in zip(self.urls, outcomes, strict=True) if isinstance(error, EngineError)}

    async def _catch_up(self, index: int) -> None:
        """Bring one engine to the published versions, whatever it serves."""
        client, published = self.clients[index], self._published
        served = await self._serves(client)
        for name, (weights_dir, version) in published.items():
            if version in served.get(name, ()):
                continue
            self._handed[index].add(weights_dir)
            if name:
                await client.load_adapter(name, weights_dir, version)
            else:
                await client.update_weights(weights_dir, version)
        self._handed[index] = {weights_dir for weights_dir, _ in published.values()}

    async def _serves(self, client: HttpEngine) -> dict[str, list[int]]:
        """The versions that an engine serves, by name as they are published."""
        adapters = await client.adapters() if self._lora.use_lora else {}
        return {**adapters, "": [await client.version()]}

    def in_use(self) -> frozenset[Path]:
        """Directories that an engine serves, or was told to load and has not said it serves."""
        return frozenset(path for directories in self._handed.values() for path in directories)

    async def newest_version(self) -> int:
        """The highest version that a running engine knows, published by this run or not; 0 if none is up."""
        versions = [0]
        for client in self.clients:
            with contextlib.suppress(EngineUnavailable):
                versions += itertools.chain.from_iterable((await self._serves(client)).values())
        return max(versions)

    async def _withdraw(self, published: Mapping[str, tuple[Path, int]]) -> None:
        """Have no engine serve a publication that one of them refused; what cannot be reached starts without it."""

        async def take_back(index: int) -> None:
            client = self.clients[index]
            served = await self._serves(client)
            for name, (_, version) in published.items():
                if name and version in served.get(name, ()):
                    await client.unload_adapter(name, version)
                elif version in served.get(name, ()):
                    await client.update_weights(*self._base)

        for url, error in (await self._with_each(take_back)).items():
            log.error("engine may still serve what was withdrawn url=%s error=%s", url, error)

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


def _by_name(weights_dir: Path, version: int) -> dict[str, tuple[Path, int]]:
    """A publication by its name: an adapter's absolute directory and version, or all weights'."""
    if not is_adapter(weights_dir):
        return {"": (weights_dir, version)}
    manifest = read_manifest(weights_dir)
    return {manifest.adapter: (weights_dir.resolve(), manifest.version)}
