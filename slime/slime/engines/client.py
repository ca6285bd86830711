"""The one client of the engine dialect: `protocols.Engine` over HTTP.

    generate ─▶ POST /generate                      one answer, whole
    stream   ─▶ POST /generate, stream: true        an event a token; closing early aborts
    score    ─▶ POST /generate, max_new_tokens: 0   log-probs of the prompt
    update_weights ─▶ /pause_generation ─▶ /update_weights_from_disk ─▶ /continue_generation ─▶ /model_info
    load_adapter   ─▶ /load_lora_adapter, beside everything else; requests find it by GET /v1/models

Nothing waits without a deadline. Generations are never retried (the engine may have sampled already); everything that
gives the same result twice is. A request that is cancelled, cut or stalled is aborted in the engine by its id: SGLang
notices a vanished client only while it streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiohttp
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from slime.engines.adapter_versions import NUM_KEPT, AdapterVersions, Loaded
from slime.engines.dialect.reading import (
    StreamReader,
    parse_adapters,
    parse_completion,
    parse_scores,
    read_error,
    read_object,
)
from slime.engines.dialect.requests import (
    AbortCall,
    LoadAdapterCall,
    PauseCall,
    PauseMode,
    UnloadAdapterCall,
    UpdateCall,
    generate_body,
    score_body,
)
from slime.engines.dialect.versions import adapter_to_wire, version_from_wire, version_to_wire
from slime.errors import EngineError, EngineFailed, EngineRejected, EngineUnavailable
from slime.protocols import Delta, GenerateRequest, TokenScores
from slime.types import Completion

log = logging.getLogger(__name__)

# Shorter than the five seconds after which uvicorn (SGLang's server and ours) closes an idle connection: the side that
# lets go second sends a request into a closed socket.
_KEEPALIVE_S = 3.0
_MAX_EVENT_BYTES = 64 * 1024 * 1024
_ATTEMPTS = 3
_NOTHING = b"{}"
_CONNECT_S = 5.0
"""How long a connection may take to open."""
_CONTROL_S = 120.0
"""How long anything but a generation may take: loading weights, pausing, scoring."""


class ConnectionLost(EngineFailed):
    """The exchange broke off: whether the engine still works on the request is unknown."""


class NotReached(EngineUnavailable):
    """No process took the connection: the engine knows nothing of the request."""


class HttpEngine:
    """An engine at a URL. One session of connections, shared by all calls; use it in one event loop and close it.

    >>> async with HttpEngine("http://127.0.0.1:30000") as engine:
    ...     completion = await engine.generate(request)
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str = "",
        timeout_s: float = 600.0,
        stall_s: float = 120.0,
        pause_mode: PauseMode | None = "retract",
    ) -> None:
        """
        Args:
            token: the bearer token that the engine requires; empty = none.
            timeout_s: how long one generation may take.
            stall_s: how long a stream may go without an event.
            pause_mode: how requests under way wait while weights change. `retract` gives up their keys and values and
                computes them anew under the new weights; `in_place` keeps the stale ones; `abort` ends them. None
                leaves it to the engine: ours reads weights beside its requests and retracts them only for the
                exchange, where a pause would hold them up through the reading; SGLang waits for the last to finish.
        """
        self.base_url = base_url.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._pause_mode = pause_mode
        self._session: aiohttp.ClientSession | None = None
        self._swap_lock = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()
        self._adapters = AdapterVersions(self._ask_adapters)
        self._unloading: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish the aborts and swaps under way, then let the connections go."""
        if self._background:
            await asyncio.wait(self._background, timeout=_CONNECT_S)
        if self._session is not None:
            await self._session.close()

    # ── generating ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample a continuation; its `finish_reason` is `abort` if it was aborted in the engine."""
        adapter, version = await self._answering(request.adapter)
        try:
            raw = await self._fetch("/generate", generate_body(request, adapter=adapter), self._timeout_s)
        except (asyncio.CancelledError, ConnectionLost):
            self._abort_soon(request.request_id)
            raise
        return parse_completion(read_object(raw), version)

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Deltas as they are sampled. Leaving early, by closing the iterator or by an error, aborts the request."""
        adapter, version = await self._answering(request.adapter)
        reader = StreamReader(request.sampling.stop, version)
        runs_on = True  # in the engine, for all we know
        try:
            body = generate_body(request, stream=True, adapter=adapter)
            async with contextlib.aclosing(self._events("/generate", body)) as events:
                async for payload in events:
                    delta = reader.feed(payload)
                    runs_on = delta.finish_reason is None
                    if delta.token_ids or delta.text or not runs_on:
                        yield delta
                    if not runs_on:
                        return
            raise ConnectionLost("the engine ended the stream before the reply was finished")
        except (EngineRejected, EngineUnavailable) as error:
            runs_on = isinstance(error, ConnectionLost)
            raise
        finally:
            if runs_on:
                self._abort_soon(request.request_id)

    async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> TokenScores:
        ids = list(token_ids)
        loaded, version = await self._answering(adapter)
        body = score_body(f"score-{uuid.uuid4().hex}", ids, start, top_k, adapter=loaded)
        raw = await self._fetch("/generate", body, _CONTROL_S)
        scores = parse_scores(read_object(raw), ids, start, top_k)
        return scores if version is None else replace(scores, version=version)

    async def _answering(self, name: str) -> tuple[str, int | None]:
        """What an adapter is called on the wire now, and its version; nothing while the base answers."""
        version = await self._adapters.newest(name) if name else None
        return ("", None) if version is None else (adapter_to_wire(name, version), version)

    async def abort(self, request_id: str) -> None:
        """End a request in the engine; harmless if there is none of that name."""
        await self._retried("/abort_request", AbortCall(rid=request_id).body())

    # ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def update_weights(self, weights_dir: Path, version: int) -> None:
        """Serve `weights_dir` as `version`; the engine goes on generating whatever happens here.

        A caller that is cancelled leaves the swap running to its end, so that no engine stays paused.

        Raises:
            EngineRejected: the engine kept its old weights, and says why.
            EngineError: it took them, but reports another version afterwards.
        """
        await asyncio.shield(self._in_background(self._swap(self._update_call(weights_dir, version))))

    def _update_call(self, weights_dir: Path, version: int) -> UpdateCall:
        # SGLang cannot flush under requests that hold their place: asked to, it loads the weights, keeps the old
        # version's name and answers 400.
        return UpdateCall(
            model_path=str(weights_dir.resolve()),
            weight_version=version_to_wire(version),
            flush_cache=self._pause_mode != "in_place",
        )

    async def _swap(self, call: UpdateCall) -> None:
        async with self._swap_lock:
            try:
                if self._pause_mode is not None:
                    await self._retried("/pause_generation", PauseCall(mode=self._pause_mode).body())
                await self._retried("/update_weights_from_disk", call.body())
            finally:
                if self._pause_mode is not None:
                    await self.resume()
            served = await self.version()
        if served != call.version:
            raise EngineError(f"the engine serves version {served} after an update to {call.version}")

    async def resume(self) -> None:
        """Let a paused engine go on; harmless if it is not paused. For one whose publisher died in a swap."""
        await self._retried("/continue_generation", _NOTHING)

    # ── adapters ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def load_adapter(self, name: str, adapter_dir: Path, version: int) -> None:
        """Serve a version of an adapter beside the base; requests for `name` that come from now on are answered by it.

        Requests under way keep the version they began with. Older versions than the last are let go of, which an
        engine may put off until their requests have ended; this call does not wait for that.

        Args:
            adapter_dir: absolute; the engine reads it where it runs.

        Raises:
            EngineRejected: the engine goes on without it, and says why.
        """
        call = LoadAdapterCall(lora_name=adapter_to_wire(name, version), lora_path=str(adapter_dir))
        try:
            raw = await self._fetch("/load_lora_adapter", call.body(), _CONTROL_S)
            loaded = self._adapters.learn(parse_adapters(read_object(raw)))
        except EngineRejected:
            loaded = await self._adapters.refresh()
            if version not in loaded.get(name, []):
                raise
        for old in loaded.get(name, [])[:-NUM_KEPT]:
            if (wire_name := adapter_to_wire(name, old)) not in self._unloading:
                self._in_background(self._unload(wire_name))

    async def unload_adapter(self, name: str, version: int) -> None:
        """Let go of one version: requests from now on are answered by the newest that is left, or the base."""
        await self._unload(adapter_to_wire(name, version))
        await self._adapters.refresh()

    async def adapters(self) -> Loaded:
        """The versions that are loaded of each adapter, oldest first."""
        return await self._adapters.refresh()

    async def _unload(self, wire_name: str) -> None:
        self._unloading.add(wire_name)
        try:
            await self._fetch("/unload_lora_adapter", UnloadAdapterCall(lora_name=wire_name).body(), self._timeout_s)
        finally:
            self._unloading.discard(wire_name)

    async def _ask_adapters(self) -> Loaded:
        return parse_adapters(read_object(await self._retried("/v1/models")))

    async def version(self) -> int:
        """The policy version being served."""
        raw = await self._retried("/model_info")
        return version_from_wire(str(read_object(raw).get("weight_version")))

    async def flush_cache(self) -> None:
        """Drop reusable keys and values; `EngineRejected` while requests are under way."""
        await self._retried("/flush_cache", _NOTHING)

    async def health(self, timeout_s: float = 30.0) -> None:
        """Return if the engine can generate a token now; raise `EngineUnavailable` if not. SGLang takes a second."""
        await self._fetch("/health_generate", None, timeout_s)

    # ── transport ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
                headers=self._headers,
                auto_decompress=False,
                trust_env=False,
            )
        return self._session

    async def _fetch(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        """One whole exchange."""
        async with self._sent(path, body, timeout_s) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def _events(self, path: str, body: bytes) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream up to [DONE], or up to where it breaks off."""
        pending = b""
        async with self._sent(path, body, self._timeout_s, self._stall_s) as chunks:
            async for chunk in chunks:
                *events, pending = (pending + chunk).split(b"\n\n")
                for event in events:
                    if event == b"data: [DONE]":
                        return
                    if event.startswith(b"data: "):
                        yield read_object(event.removeprefix(b"data: "))
                if len(pending) > _MAX_EVENT_BYTES:
                    raise EngineError(f"{self.base_url}{path}: an event of more than {_MAX_EVENT_BYTES} bytes")

    @contextlib.asynccontextmanager
    async def _sent(
        self, path: str, body: bytes | None, timeout_s: float, stall_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of an answer as it arrives; an `EngineError` of the right kind for every way an exchange can fail.

        Args:
            body: of a POST; None: a GET.
            stall_s: how long nothing may arrive.
        """
        method, url = "GET" if body is None else "POST", self.base_url + path
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S, sock_read=stall_s)
        limits: Any = {"timeout": timeout, "read_bufsize": 2**20, "max_line_size": _MAX_EVENT_BYTES}
        try:
            async with self._connections().request(method, url, data=body, **limits) as response:
                if response.status != 200:
                    raise read_error(response.status, await response.read())
                yield response.content.iter_any()
        except TimeoutError as error:
            is_stall = stall_s is not None and isinstance(error, aiohttp.SocketTimeoutError)
            limit = f"no token for {stall_s:g} s" if is_stall else f"took longer than {timeout_s:g} s"
            raise ConnectionLost(f"{url}: {limit}") from None
        except aiohttp.ClientError as error:
            kind = NotReached if isinstance(error, aiohttp.ClientConnectorError) else ConnectionLost
            raise kind(f"{url}: {error or type(error).__name__}") from error

    async def _retried(self, path: str, body: bytes | None = None) -> bytes:
        """An exchange that may be repeated without harm."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(EngineUnavailable),
            stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(_CONTROL_S),
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            reraise=True,
        )
        return await retrying(self._fetch, path, body, _CONTROL_S)

    # ── what goes on after its caller has left ──────────────────────────────────────────────────────────────────────

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("engine call failed url=%s error=%s", self.base_url, error)

    def _abort_soon(self, request_id: str) -> None:
        async def abort() -> None:
            with contextlib.suppress(EngineError):  # an engine that cannot be reached runs nothing for us either
                await self._fetch("/abort_request", AbortCall(rid=request_id).body(), _CONNECT_S)

        self._in_background(abort())
