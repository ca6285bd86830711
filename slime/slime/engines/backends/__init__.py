"""Kinds of engine that can be started, a file each: what its command line says, and what it does differently.

    --backend sglang ─▶ backend_named ─▶ engines/backends/sglang.py: BACKEND ─▶ launch.start_engine, cluster.Fleet

A new one is a file here with a `BACKEND` in it, and its name in `EngineConfig.backend`. It speaks the dialect, or has
something in front of it that does; `tests/engines/conformance.py` says what that takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slime.config.sections import EngineConfig, LoraConfig, ModelConfig
from slime.engines.dialect.requests import PauseMode
from slime.engines.dialect.versions import adapter_to_wire

Adapters = Mapping[str, tuple[Path, int]]
"""Directory and version of what an engine begins with, by the adapter's name."""


@dataclass(frozen=True)
class Launch:
    """What an engine is started with.

    Attributes:
        shared: flags that all of them take: address, model, version, places for requests, incremental streams.
        gpus: what it may see, as in CUDA_VISIBLE_DEVICES; empty = all there are.
        is_cpu: whether it computes on the CPU.
    """

    model: ModelConfig
    engine: EngineConfig
    shared: tuple[str, ...]
    gpus: str
    is_cpu: bool


@dataclass(frozen=True)
class Backend:
    """One kind of engine.

    Attributes:
        command: its command line, the shared flags included.
        environment: variables that it needs on top of this process's own.
        lora_flags: what makes it ready for adapters that are loaded later; `is_cpu` as in `Launch`.
        pause_mode: what becomes of running requests while weights are swapped; None: it swaps between two steps and
            need not be paused.
        token_from: how it is told the token it is to want: `stdin`, its first line, or `config`, a YAML file with
            `api-key` that is gone once it is up. Neither `ps` nor its environment shows it.
        check: raises a `ConfigError` where it cannot be started on this machine.
    """

    command: Callable[[Launch], list[str]]
    environment: Callable[[Launch], dict[str, str]] = lambda launch: {}
    lora_flags: Callable[[LoraConfig, bool], list[str]] = lambda lora, is_cpu: []
    pause_mode: PauseMode | None = None
    token_from: Literal["stdin", "config"] = "stdin"
    check: Callable[[EngineConfig], None] = lambda engine: None

    def adapter_flags(self, lora: LoraConfig, adapters: Adapters, *, is_cpu: bool) -> tuple[str, ...]:
        """Further flags of an engine that serves adapters beside the base."""
        if not lora.use_lora or lora.lora_publish == "merged":
            return ()
        named = [f"{adapter_to_wire(name, version)}={path}" for name, (path, version) in adapters.items()]
        return (*self.lora_flags(lora, is_cpu), *(["--lora-paths", *named] if named else []))


def check_engine(engine: EngineConfig) -> None:
    """Find out before the start whether engines can be started here; those that are attached run already.

    Raises:
        ConfigError: they cannot.
    """
    if not engine.engine_url:
        backend_named(engine.backend).check(engine)


def backend_named(name: str) -> Backend:
    """The backend of a name that `EngineConfig.backend` takes; imported when it is asked for."""
    backend: Backend = importlib.import_module(f"{__name__}.{name}").BACKEND
    return backend
