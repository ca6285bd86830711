"""Fixtures of the server's tests: a model directory, and servers in front of scripted engines."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openclaw_test.tiny.tokenizer import learn_tokenizer
from safetensors.torch import save_file
from server_rig import ADMIN_KEY, MAX_CONTEXT, Hangable, Replies, Rig, StartRig, listening
from slime.chat import ChatFormat
from slime.config.sections import LoraConfig
from slime.engines.client import HttpEngine
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.script import Script
from slime.engines.scripted.server import ScriptedApp
from slime.store import Store

from openclaw.api.app import App
from openclaw.api.exchange import CutStreamFilter
from openclaw.api.gate import Gate
from openclaw.api.generation import ServedModel
from openclaw.capture import CaptureOff, CaptureOn
from openclaw.engine_pool import EnginePool


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
            hung_s: float = 20.0,
            token_delay_s: float = 0.0,
            buffer_dir: Path | None = None,
            lora: LoraConfig = LoraConfig(),
            api_key: str = "",
            gate_options: dict[str, Any] | None = None,
            **app_options: Any,
        ) -> Rig:
            script = [replies] if isinstance(replies, str) else replies
            cores, urls, engine_apps = [], [], list[Hangable]()
            for _ in range(num_engines):
                core = ScriptedCore(Script(script, model_dir), token_delay_s=token_delay_s, is_incremental=True)
                cores.append(core)
                engine_apps.append(Hangable(ScriptedApp(core)))
                urls.append(await stack.enter_async_context(listening(engine_apps[-1])))
            store = Store.open(buffer_dir or tmp_path / "buffer") if capture else None
            keeper = CaptureOn(store) if store is not None else CaptureOff()
            await keeper.restore()
            pool = EnginePool([HttpEngine(url) for url in urls], patience_s=patience_s, hung_s=hung_s)
            await pool.start()
            stack.push_async_callback(keeper.close)
            stack.push_async_callback(pool.close)
            model = ServedModel("tiny", ChatFormat.load(model_dir), MAX_CONTEXT, 256, lora)
            gate = Gate(api_key=api_key, admin_key=ADMIN_KEY if capture else "", **gate_options or {})
            app = App(model, pool, keeper, gate=gate, **app_options)
            url = await stack.enter_async_context(listening(app))
            json_headers = {"content-type": "application/json"}
            http = httpx.AsyncClient(base_url=url, timeout=20, headers=json_headers)
            await stack.enter_async_context(http)
            return Rig(url, cores, store, keeper, pool, app, http, urls, engine_apps)

        yield start_rig


@pytest.fixture(autouse=True)
def _no_complaints_about_streams_cut_on_purpose() -> None:
    logging.getLogger("uvicorn.error").addFilter(CutStreamFilter())
