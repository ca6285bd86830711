"""A whole server on a real port, in the test's own event loop, in front of scripted engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
import uvicorn
from openclaw_test.tiny_tokenizer import learn_tokenizer
from safetensors.torch import save_file
from slime.chat import ChatFormat
from slime.engines.client import HttpEngine
from slime.engines.scripted import Prompt, Script, ScriptedCore
from slime.engines.scripted.server import ScriptedApp
from slime.store import Store

from openclaw.app import App
from openclaw.capture import CaptureOff, CaptureOn
from openclaw.chat_completions import ServedModel
from openclaw.engine_pool import EnginePool
from openclaw.exchange import CutStreamFilter

MAX_CONTEXT = 2048


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory whose weights nobody loads."""
    directory = tmp_path_factory.mktemp("served-model")
    tokenizer = learn_tokenizer(["Hello there, how are you today? I think that is right."] * 2)
    tokenizer.save_pretrained(directory)
    config = {"model_type": "qwen3", "vocab_size": len(tokenizer), "max_position_embeddings": MAX_CONTEXT}
    (directory / "config.json").write_text(json.dumps(config | {"eos_token_id": tokenizer.eos_token_id}))
    save_file({"unused": torch.zeros(1)}, directory / "model.safetensors")
    return directory


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
        config.timeout_graceful_shutdown = 1
        server = _Quiet(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 10)


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


@pytest.fixture
async def start(model_dir: Path, tmp_path: Path) -> AsyncIterator[StartRig]:
    """Starts a rig: `await start("a reply", capture=True, api_key="", engines=1, token_delay_s=0.0)`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start_rig(
            replies: Replies | str = "Hello there.",
            *,
            capture: bool = True,
            num_engines: int = 1,
            patience_s: float = 2.0,
            token_delay_s: float = 0.0,
            buffer_dir: Path | None = None,
            **app_options: Any,
        ) -> Rig:
            script = [replies] if isinstance(replies, str) else replies
            cores, urls = [], []
            for _ in range(num_engines):
                core = ScriptedCore(Script(script, model_dir), token_delay_s=token_delay_s, is_incremental=True)
                cores.append(core)
                urls.append(await stack.enter_async_context(listening(ScriptedApp(core))))
            store = Store.open(buffer_dir or tmp_path / "buffer") if capture else None
            keeper = CaptureOn(store) if store is not None else CaptureOff()
            await keeper.restore()
            pool = EnginePool([HttpEngine(url) for url in urls], patience_s=patience_s)
            await pool.start()
            stack.push_async_callback(keeper.close)
            stack.push_async_callback(pool.close)
            model = ServedModel("tiny", ChatFormat.load(model_dir), MAX_CONTEXT, 256)
            app = App(model, pool, keeper, **app_options)
            url = await stack.enter_async_context(listening(app))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
            return Rig(url, cores, store, keeper, pool, app, http, urls)

        yield start_rig


@pytest.fixture(autouse=True)
def _no_complaints_about_streams_cut_on_purpose() -> None:
    logging.getLogger("uvicorn.error").addFilter(CutStreamFilter())


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Wait until something holds; fail when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if holds if isinstance(holds, bool) else await holds:
                return
            await asyncio.sleep(0.01)
