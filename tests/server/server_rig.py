"""A whole server on a real port, in the test's own event loop, in front of scripted engines."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import openai
import uvicorn
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.script import Prompt
from slime.store import Store

from openclaw.api.app import App
from openclaw.api.connections import BoundedHttp, Connections
from openclaw.capture import CaptureOff, CaptureOn
from openclaw.engine_pool import EnginePool

MAX_CONTEXT = 2048
ADMIN_KEY = "the key of those who may praise"


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Wait until something holds; fail when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.01)


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: Any, max_connections: int = 1000) -> AsyncIterator[str]:
    """An ASGI application on a free port; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        protocol: Any = partial(BoundedHttp, open_connections=Connections(max_connections))
        config = uvicorn.Config(app, http=protocol, lifespan="off", log_config=None, access_log=False)
        config.timeout_graceful_shutdown = 1
        server = _Quiet(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 10)


class Hangable:
    """An application that stops answering, in the middle of streams too, while `is_hung`; connections stay open."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    def hang(self) -> None:
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_later(event: Any) -> None:
            await self._goes_on.wait()
            await send(event)

        await self._app(scope, receive, send_later)


@dataclass
class Rig:
    """A running server and what stands behind it."""

    url: str
    engines: list[ScriptedCore]
    store: Store | None
    capture: CaptureOn | CaptureOff
    pool: EnginePool
    app: App
    http: httpx.AsyncClient
    engine_urls: list[str] = field(default_factory=list)
    engine_apps: list[Hangable] = field(default_factory=list)

    @property
    def engine(self) -> ScriptedCore:
        return self.engines[0]

    def client(self, api_key: str = "local") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=20)

    async def chat(self, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)

    async def events(self, **fields: Any) -> list[str]:
        """The payloads of a stream, as they stand after `data: `."""
        response = await self.chat(stream=True, **fields)
        assert response.status_code == 200, response.text
        return [line[6:] for line in response.text.split("\n\n") if line.startswith("data: ")]


StartRig = Callable[..., Awaitable[Rig]]
Replies = Callable[[Prompt], str] | Sequence[str]
