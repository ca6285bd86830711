"""Benchmarks tokens/s: the embedded engine over HTTP, log-probs included, against `model.generate`, in one run.

    python benchmarks/random_weights/engine_throughput.py [--quick] [--shape small|tiny] [--device cpu|cuda]

Both sides sample the same number of new tokens at temperature 1 from the same random weights, on one thread each.
Engine and `generate` alternate for several rounds, and the ratio of their medians is printed. The engine is a separate
process that gets N concurrent POST /generate; `generate` runs in this process on the whole batch. No prompt repeats. On
a busy machine the ratio of CPU seconds, HTTP included, is more meaningful than that of wall-clock times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import torch
from engine_process import KEEPALIVE_S, SHAPES, Served, build_model, engine_process
from transformers import AutoModelForCausalLM


async def engine_round(client: aiohttp.ClientSession, prompts: list[list[int]], num_new: int) -> float:
    """Seconds until the last of the concurrent requests is answered."""

    async def ask(prompt: list[int]) -> None:
        body = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": num_new, "ignore_eos": True, "temperature": 1.0},
            "return_logprob": True,
        }
        async with client.post("/generate", json=body) as response:
            assert response.status == 200, await response.text()
            meta = (await response.json())["meta_info"]
            assert len(meta["output_token_logprobs"]) == num_new, meta

    started = time.perf_counter()
    await asyncio.gather(*(ask(prompt) for prompt in prompts))
    return time.perf_counter() - started


@torch.inference_mode()
def generate_round(model: torch.nn.Module, prompts: list[list[int]], num_new: int) -> float:
    ids = torch.tensor(prompts, device=next(model.parameters()).device)
    started = time.perf_counter()
    out = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        max_new_tokens=num_new,
        min_new_tokens=num_new,
        pad_token_id=0,
    )
    assert out.shape[1] == ids.shape[1] + num_new
    out.cpu()
    return time.perf_counter() - started


async def compare(
    server: Served, model: torch.nn.Module, case: tuple[int, int], rounds: int, num_new: int
) -> dict[str, Any]:
    """Median tokens a second of both sides for (sequences, context), and their ratio."""
    num_sequences, context = case
    config: Any = model.config
    rng = random.Random(context * num_sequences)
    times: dict[str, list[float]] = {"engine": [], "generate": []}
    cpu_ratios: list[float] = []

    def new_prompts() -> list[list[int]]:
        return [[rng.randrange(config.vocab_size) for _ in range(context)] for _ in range(num_sequences)]

    async with aiohttp.ClientSession(
        server.url, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    ) as client:
        # Warm up, the engine long enough to have used its slots: fresh memory is dear in a virtual machine.
        for _ in range(min(8, 128 // num_sequences)):
            await engine_round(client, new_prompts(), 2)
        generate_round(model, new_prompts(), 2)
        for _ in range(rounds):
            prompts = new_prompts()
            used_s = server.cpu_s()
            engine_s = await engine_round(client, prompts, num_new)
            used_s, own_s = server.cpu_s() - used_s, time.process_time()
            generate_s = generate_round(model, prompts, num_new)
            times["engine"].append(engine_s)
            times["generate"].append(generate_s)
            cpu_ratios.append((time.process_time() - own_s) / used_s)
    rate = {side: num_sequences * num_new / statistics.median(seconds) for side, seconds in times.items()}
    return {
        "sequences": num_sequences,
        "context": context,
        **rate,
        "ratio": rate["engine"] / rate["generate"],
        "cpu_ratio": statistics.median(cpu_ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two rounds, 32 new tokens, no 64 × 512")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small", help="of the random model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-new", type=int, default=64, help="new tokens a sequence")
    parser.add_argument("--cases", default="1x64,16x64,64x64,1x512,16x512,64x512", help="sequences x context")
    args = parser.parse_args()
    torch.set_num_threads(1)
    num_new, rounds = (32, 2) if args.quick else (args.num_new, args.rounds)
    cases = [
        (int(sequences), int(context)) for sequences, context in (case.split("x") for case in args.cases.split(","))
    ]
    if args.quick:
        cases = [case for case in cases if case != (64, 512)]
    results = []
    with tempfile.TemporaryDirectory() as directory:
        model_dir = build_model(Path(directory), args.shape)
        dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).to(args.device).eval()
        with engine_process(model_dir, "--device", args.device) as server:
            for case in cases:
                result = asyncio.run(compare(server, model, case, rounds, num_new))
                results.append(result)
                print(
                    f"{result['sequences']:3d} × {result['context']:3d}: engine {result['engine']:8.1f} tok/s, "
                    f"generate {result['generate']:8.1f} tok/s, ratio {result['ratio']:.2f} "
                    f"(of processor seconds {result['cpu_ratio']:.2f})",
                    flush=True,
                )
    print(json.dumps({"benchmark": "engine_throughput", "shape": args.shape, "device": args.device, "cases": results}))
    return 0 if all(result["ratio"] >= 1.0 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
