"""Benchmarks the embedded engine on the device: log-probs against transformers, tokens/s against `generate`.

    random weights ─┬─ engine, its own process, over HTTP ─▶ log-probs, tokens a second, utilisation, memory
                    └─ transformers on the same device    ─▶ the same, as the baseline

Utilisation counts 2 operations per parameter and token, relative to the rate of a large matrix product in this run.
Log-probs are compared with transformers in float32: `engine` is the engine's error, `transformers` that of transformers
itself in the engine's element type. On CUDA that type is bfloat16.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from engine_process import SHAPES, Served, build_model, engine_process
from engine_throughput import compare
from measuring import Results, arguments, compute_type, free_memory, peak_flops
from slime.engines.client import HttpEngine
from transformers import AutoModelForCausalLM

KV_BYTES = 8 << 30


async def scores(server: Served, ids: list[int]) -> tuple[float, ...]:
    async with HttpEngine(server.url) as engine:
        return (await engine.score(ids, 1)).logprobs


@torch.inference_mode()
def own_scores(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    tokens = torch.tensor([ids], device=next(model.parameters()).device)
    logits = model(input_ids=tokens).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None]).squeeze(-1).cpu()


def parity(server: Served, model: torch.nn.Module, model_dir: Path, device: str, length: int) -> dict[str, Any]:
    """Mean |Δ log-prob| of both sides to float32."""
    vocab = model.config.vocab_size  # type: ignore[union-attr]
    ids = [random.Random(0).randrange(3, vocab) for _ in range(length)]
    engine = torch.tensor(asyncio.run(scores(server, ids)))
    same_type = own_scores(model, ids)
    exact = own_scores(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).to(device), ids)
    free_memory()
    return {f"mean_abs_{name}": float((found - exact).abs().mean()) for name, found in
            (("engine", engine), ("transformers", same_type))}  # fmt: skip


def used_gb() -> float:
    """What all processes together use of the device."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    shape = "tiny" if args.tiny else args.shape
    cases = [(2, 16)] if args.tiny else [(1, 512), (16, 512), (64, 512), (16, 4096)]
    num_new, rounds = (4, 1) if args.tiny else (128, 3)
    dtype = compute_type(args.device)
    results = Results(args.out, f"engine-{shape}", args.device)
    peak = peak_flops(args.device, dtype, 256 if args.tiny else 8192)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = build_model(Path(folder), shape, dtype, args.device)
        free_memory()
        before = used_gb()
        name = "bfloat16" if dtype is torch.bfloat16 else "float32"
        kv = str(KV_BYTES if args.device == "cuda" else 64 << 20)
        with engine_process(model_dir, "--device", args.device, "--dtype", name, "--kv-cache-bytes", kv) as server:
            engine_gb = used_gb() - before
            model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).to(args.device).eval()
            num_parameters = sum(p.numel() for p in model.parameters())
            results.add("log-probs", parity(server, model, model_dir, args.device, 32 if args.tiny else 1024))
            for case in cases:
                found = asyncio.run(compare(server, model, case, rounds, num_new))
                share = {f"{side}_mfu": 2 * num_parameters * found[side] / peak for side in ("engine", "generate")}
                memory = {"engine_gb": engine_gb, "peak_flops": peak, "parameters": num_parameters}
                results.add(f"{case[0]} × {case[1]}", {**found, **share, **memory})
    ratios = [figures["ratio"] for figures in results.cases.values() if "ratio" in figures]
    results.add("all", {"median_ratio": statistics.median(ratios), "vocabulary": SHAPES[shape]["vocab_size"]})
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
