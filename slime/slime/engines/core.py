"""What generates behind the routes of our engines: admission, requests by name, adapters by name.

call ─▶ admit: a name of its own, an adapter that is loaded, a place in the queue ─▶ serve ─▶ answers
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar

from slime.engines.dialect.requests import (
    GenerateCall,
    Limits,
    LoadAdapterCall,
    PauseMode,
    UnloadAdapterCall,
    UpdateCall,
)
from slime.engines.dialect.versions import version_to_wire
from slime.errors import EngineRejected, EngineUnavailable

Json = dict[str, Any]
Request = TypeVar("Request")
"""What an engine keeps of a request under way."""


class EngineCore(ABC, Generic[Request]):
    """An engine; everything is called on one event loop.

    Args:
        max_running_requests: 0 = as many as come.
        is_incremental: events of a stream hold only what is new, as SGLang's with --incremental-streaming-output.

    Attributes:
        model_path: the directory of the weights that are served; `tokenizer_path`: the one it was started with.
        version: of those weights.
        adapters: directories of the adapters that are loaded, by name on the wire.
        requests: those under way, by id.
        is_instant: whether answers come without waiting, so that there is no client to watch for meanwhile.
    """

    def __init__(
        self,
        model_path: str,
        version: int,
        limits: Limits,
        *,
        max_running_requests: int = 0,
        max_queued_requests: int = 256,
        is_incremental: bool = False,
    ) -> None:
        self.model_path = self.tokenizer_path = model_path
        self.version = version
        self.limits = limits
        self.max_running_requests = max_running_requests
        self.max_queued_requests = max_queued_requests
        self.is_incremental = is_incremental
        self.adapters: dict[str, str] = {}
        self.requests: dict[str, Request] = {}
        self._changing = asyncio.Lock()

    @property
    def is_alive(self) -> bool:
        """Whether it computes at all."""
        return True

    @property
    def is_instant(self) -> bool:
        return False

    def start(self) -> None:
        """Start computing, on the event loop that runs now."""
        return

    @abstractmethod
    async def stop(self) -> None: ...

    def admit(self, call: GenerateCall) -> AsyncGenerator[Json]:
        """The answers to a request as they become known; the last has a finish reason. Closing early aborts it.

        Raises:
            EngineRejected: it cannot be served, ever.
            EngineUnavailable: places and queue are full.
        """
        if call.rid in self.requests:
            raise EngineRejected(f"Duplicate request ID detected: {call.rid}")
        if call.lora_path and call.lora_path not in self.adapters:
            raise EngineRejected(f"The following requested LoRA adapters are not loaded: {call.lora_path}")
        if self.max_running_requests and len(self.requests) >= self.max_running_requests + self.max_queued_requests:
            raise EngineUnavailable("The request queue is full.")
        return self.serve(call)

    @abstractmethod
    def serve(self, call: GenerateCall) -> AsyncGenerator[Json]:
        """The answers to a request that has been admitted."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request where it is; its answer says so. Unknown ids are no error: it may just have ended."""

    def abort_all(self) -> None:
        for request_id in self.requests:
            self.abort(request_id)

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None: ...

    @abstractmethod
    async def resume(self) -> None: ...

    async def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Drop the prefix cache; False where requests still run after `timeout_s`."""
        return True

    async def update_weights(self, call: UpdateCall) -> None:
        """Serve other weights. Raises EngineError or WeightsError, and goes on serving what it served."""
        async with self._changing:
            await self._exchange(call)
            self.model_path, self.version = call.model_path, call.version

    @abstractmethod
    async def _exchange(self, call: UpdateCall) -> None: ...

    async def load_adapter(self, call: LoadAdapterCall) -> None:
        """Serve an adapter beside the base from now on, under a name that is free; no request waits for it.

        Raises:
            WeightsError: it is corrupt, or was trained on other weights.
        """
        async with self._changing:
            if call.lora_name in self.adapters:
                raise EngineRejected(f"Failed to load LoRA adapter {call.lora_name} because it is already loaded")
            await self._load(call)
            self.adapters[call.lora_name] = call.lora_path

    @abstractmethod
    async def _load(self, call: LoadAdapterCall) -> None: ...

    async def unload_adapter(self, call: UnloadAdapterCall) -> None:
        """Refuse new requests for an adapter; those that run go on with it."""
        if self.adapters.pop(call.lora_name, None) is None:
            raise EngineRejected(f"The following requested LoRA adapters are not loaded: {call.lora_name}")
        await self._unload(call.lora_name)

    async def _unload(self, name: str) -> None:
        return

    async def is_healthy(self, timeout_s: float) -> bool:
        """Whether a token comes out in time."""
        return True

    async def info(self) -> Json:
        """The answer to /server_info."""
        return {
            "model_path": self.model_path,
            "context_length": self.limits.context_len,
            "max_running_requests": self.max_running_requests,
            "max_queued_requests": self.max_queued_requests,
            "incremental_streaming_output": self.is_incremental,
            "weight_version": version_to_wire(self.version),
            "lora_paths": self.adapters,
            **await self.figures(),
        }

    @abstractmethod
    async def figures(self) -> Json:
        """What else /server_info says of this kind of engine."""
