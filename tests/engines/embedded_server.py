"""What the tests of the embedded engine share: small random models, a real server on a free port, the reference."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import torch
import uvicorn
from random_model import build_random_model
from slime.engines.embedded.service import EngineOptions, EngineService
from slime.engines.http import EngineApp
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)


_MODELS = tempfile.TemporaryDirectory(prefix="embedded-engine-")  # removed when the tests end


@functools.cache
def random_model(seed: int = 0) -> Path:
    """A random two-layer Qwen3 whose first 256 tokens are the bytes."""
    return build_random_model(Path(_MODELS.name) / f"model-{seed}", seed)


@functools.cache
def reference(model_dir: Path) -> Any:
    """transformers' own model, in float32."""
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager").eval()


def reference_logprobs(model_dir: Path, ids: list[int], temperature: float = 1.0) -> list[float]:
    """log p(ids[i] | ids[:i]) for i ≥ 1, by one forward pass of transformers."""
    with torch.no_grad():
        logits = reference(model_dir)(torch.tensor([ids])).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait for something that only polling can see."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


class Engine:
    """A served engine: its HTTP client, and the service behind it to look at."""

    def __init__(self, service: EngineService, client: httpx.AsyncClient) -> None:
        self.service, self.client = service, client

    async def generate(self, input_ids: list[int], *, expect: int = 200, **fields: Any) -> dict[str, Any]:
        """POST /generate; every field that is no top-level one is a sampling parameter."""
        response = await self.client.post("/generate", json=self.body(input_ids, **fields))
        assert response.status_code == expect, response.text
        return dict(response.json())

    @staticmethod
    def body(input_ids: list[int], **fields: Any) -> dict[str, Any]:
        top = {"rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "stream"}
        body: dict[str, Any] = {name: fields.pop(name) for name in list(fields) if name in top}
        return {"input_ids": input_ids, "return_logprob": True, **body, "sampling_params": fields}

    async def post(self, path: str, expect: int = 200, **body: Any) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code == expect, response.text
        return dict(response.json()) if response.headers.get("content-type") == "application/json" else {}


@contextlib.asynccontextmanager
async def serve(model_dir: Path, **options: Any) -> AsyncIterator[Engine]:
    """Serve a model on a free port of the loopback."""
    service = EngineService(EngineOptions(str(model_dir), device="cpu", **options))
    server = uvicorn.Server(uvicorn.Config(EngineApp(service), port=0, log_level="warning", access_log=False))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield Engine(service, client)
    finally:
        server.should_exit = True
        await running
