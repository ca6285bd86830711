"""An engine under test: where it listens, what it serves, and what its log-probs ought to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import torch
from random_model import build_random_adapter, build_random_model
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.launch import start_engine
from slime.engines.scripted.script import declared_logprob
from slime.weights.adapters import merge_adapter
from transformers import Qwen3ForCausalLM

MAX_RUNNING, MAX_QUEUED = 4, 4  # SGLang queues all that arrive in one step, however many places are free
VOCAB_SIZE = 263
PROMPT = tuple(range(60, 90))
ADAPTER_VERSIONS = (6, 7, 8, 9)

Oracle = Callable[[Sequence[int], int, float], list[float]]


@dataclass(frozen=True)
class Rig:
    """One running engine with room for four requests and four more in its queue.

    Attributes:
        first_dir, next_dir: the weights it was started with (version 0), and others of the same shape.
        oracle: (ids, version, temperature) → log-prob of ids[i] given ids[:i] for every i ≥ 1.
        tolerance: how far its log-probs may be from the oracle's.
        adapter_dirs: adapters of the first weights, by version; none is loaded.
        adapter_oracle: as `oracle`, with an adapter of that version.
    """

    url: str
    first_dir: Path
    next_dir: Path
    oracle: Oracle
    tolerance: float
    adapter_dirs: dict[int, Path]
    adapter_oracle: Oracle

    def post(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0) -> httpx.Response:
        return httpx.post(self.url + path, json=body or {}, timeout=timeout_s)

    def generate(self, **fields: Any) -> dict[str, Any]:
        """The answer to a request that must succeed."""
        response = self.post("/generate", generate_fields(**fields))
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


def generate_fields(*, input_ids: Sequence[int] = PROMPT, **fields: Any) -> dict[str, Any]:
    """A request's body: sampling parameters and fields of the request in one list of keywords."""
    outer = {"rid", "lora_path", "stream"}
    outer |= {"return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"}
    params = {"temperature": 1.0, "max_new_tokens": 8, "ignore_eos": True}
    params |= {name: value for name, value in fields.items() if name not in outer}
    named = {name: value for name, value in fields.items() if name in outer}
    return {"input_ids": list(input_ids), "sampling_params": params, "return_logprob": True, **named}


def run_rig(
    backend: str,
    work_dir: Path,
    *,
    tolerance: float,
    sglang_python: str = "",
    environment: dict[str, str] | None = None,
    extra_args: tuple[str, ...] = (),
) -> Iterator[Rig]:
    """Start an engine over a random model, and stop it when the tests are done with it."""
    first_dir = build_random_model(work_dir / "first", seed=0)
    next_dir = build_random_model(work_dir / "next", seed=1)
    adapter_dirs = {
        version: build_random_adapter(first_dir, work_dir / f"adapter-{version}", version)
        for version in ADAPTER_VERSIONS
    }
    engine = EngineConfig(max_running_requests=MAX_RUNNING, max_queued_requests=MAX_QUEUED, sglang_python=sglang_python)
    model = ModelConfig(model_path=str(first_dir), device="cpu", dtype="float32")
    with asyncio.Runner() as runner:
        process = runner.run(
            start_engine(
                model,
                engine,
                backend=backend,
                log_path=work_dir / f"{backend}.log",
                environment=environment,
                extra_args=extra_args,
            )
        )
        oracle = adapter_oracle = _scripted_oracle
        if backend != "scripted":
            oracle = _forward_oracle(lambda version: (first_dir, next_dir)[min(version, 1)])
            adapter_oracle = _forward_oracle(_merging(first_dir, adapter_dirs))
        try:
            yield Rig(process.url, first_dir, next_dir, oracle, tolerance, adapter_dirs, adapter_oracle)
        finally:
            runner.run(process.stop())


def _scripted_oracle(ids: Sequence[int], version: int, temperature: float) -> list[float]:
    return [declared_logprob(ids[i], i, version, VOCAB_SIZE) for i in range(1, len(ids))]


def _merging(base_dir: Path, adapter_dirs: dict[int, Path]) -> Callable[[int], Path]:
    """Directories of the models that base and adapters make together."""

    def merged(version: int) -> Path:
        out_dir = base_dir.with_name(f"merged-{version}")
        merge_adapter(base_dir, adapter_dirs[version], out_dir)
        return out_dir

    return merged


def _forward_oracle(model_dir: Callable[[int], Path]) -> Oracle:
    """transformers' own forward pass, whole sequence at once, without any cache."""

    @cache
    def model(version: int) -> Qwen3ForCausalLM:
        return Qwen3ForCausalLM.from_pretrained(model_dir(version), dtype=torch.float32).eval()

    def logprobs(ids: Sequence[int], version: int, temperature: float) -> list[float]:
        with torch.no_grad():
            logits = model(version)(torch.tensor([list(ids)])).logits[0]
        table = torch.log_softmax(logits / temperature, dim=-1)
        return [float(table[i - 1, ids[i]]) for i in range(1, len(ids))]

    return logprobs
