"""The scripted engine in this process: the same surface as `HttpEngine`, without a socket.

Requests and answers still pass through the dialect, so that faults come out as the errors a client would raise.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from slime.engines.adapter_versions import Loaded
from slime.engines.dialect.answers import error_body, model_list
from slime.engines.dialect.reading import (
    StreamReader,
    parse_adapters,
    parse_completion,
    parse_scores,
    read_error,
    read_object,
)
from slime.engines.dialect.requests import (
    LoadAdapterCall,
    UpdateCall,
    generate_body,
    parse_generate,
    parse_json,
    score_body,
)
from slime.engines.dialect.versions import adapter_to_wire, version_to_wire
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.faults import Fault, Faults, InjectedFault
from slime.engines.scripted.script import DEFAULT_REPLIES, ReplyFunction, Script
from slime.errors import EngineError, EngineUnavailable
from slime.protocols import Delta, GenerateRequest, TokenScores
from slime.types import Completion


class ScriptedEngine:
    """A `protocols.Engine` that says its script.

    >>> engine = ScriptedEngine(["Hello.", "Goodbye."], token_delay_s=0.01)
    """

    def __init__(
        self,
        replies: ReplyFunction | Sequence[str] = DEFAULT_REPLIES,
        *,
        model_dir: Path | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are those of `ScriptedCore`."""
        self.core = ScriptedCore(Script(replies, model_dir), model_path=str(model_dir or ""), **settings)

    @property
    def faults(self) -> Faults:
        return self.core.faults

    async def generate(self, request: GenerateRequest) -> Completion:
        body = generate_body(request, adapter=self._answering(request.adapter))
        answers = [payload async for payload in self._payloads(body)]
        return parse_completion(answers[-1])

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        reader = StreamReader(request.sampling.stop)
        body = generate_body(request, stream=True, adapter=self._answering(request.adapter))
        async with contextlib.aclosing(self._payloads(body)) as payloads:
            async for payload in payloads:
                yield reader.feed(payload)

    async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> TokenScores:
        ids = list(token_ids)
        body = score_body(f"score-{uuid.uuid4().hex}", ids, start, top_k, adapter=self._answering(adapter))
        answers = [payload async for payload in self._payloads(body)]
        return parse_scores(answers[-1], ids, start, top_k)

    async def update_weights(self, weights_dir: Path, version: int) -> None:
        call = UpdateCall(model_path=str(weights_dir), weight_version=version_to_wire(version))
        await self.core.update_weights(call)

    async def load_adapter(self, name: str, adapter_dir: Path, version: int) -> None:
        call = LoadAdapterCall(lora_name=adapter_to_wire(name, version), lora_path=str(adapter_dir))
        await self.core.load_adapter(call)

    async def adapters(self) -> Loaded:
        return self._loaded()

    def _loaded(self) -> Loaded:
        return parse_adapters(model_list(self.core.model_path, self.core.adapters))

    def _answering(self, name: str) -> str:
        loaded = self._loaded()
        return adapter_to_wire(name, loaded[name][-1]) if name in loaded else ""

    async def abort(self, request_id: str) -> None:
        self.core.abort(request_id)

    async def version(self) -> int:
        return self.core.version

    async def health(self, timeout_s: float = 30.0) -> None:
        """A scripted engine is always well; its faults are those of requests."""

    async def resume(self) -> None:
        await self.core.resume()

    async def flush_cache(self) -> None:
        """Nothing is cached."""

    async def close(self) -> None:
        await self.core.stop()

    async def _payloads(self, body: bytes) -> AsyncGenerator[dict[str, Any], None]:
        call = parse_generate(parse_json(body), uuid.uuid4().hex, self.core.limits)
        try:
            async with contextlib.aclosing(self.core.admit(call)) as answers:
                async for answer in answers:
                    yield read_object(orjson.dumps(answer))
        except InjectedFault as error:
            raise _as_seen(error.fault) from error


def _as_seen(fault: Fault) -> EngineError:
    """What a client would raise of a fault that a transport shows."""
    if fault is Fault.CUT:
        return EngineUnavailable("the engine dropped the connection")
    if fault is Fault.BAD_JSON:
        return EngineError("the engine's answer is not JSON")
    return read_error(500 if fault is Fault.HTTP_500 else 503, error_body("injected"))
