"""Measures weight sync, latency and bytes written per update: LoRA against full weights, in one run.

    python benchmarks/random_weights/lora.py [--shape tiny] [--versions 30] [--rank 8]

One trainer and one engine on a random model. The clock starts after each step; the trainer writes its checkpoint, fsync
and hashes included, and the engine loads it, as in a run; the clock stops when the engine confirms the version. Then a
token is sampled, and its label must be that version. A request runs throughout, so the engine is never idle. The bytes
are those of the files that engines load, also computed for Qwen3-0.6B's shape without building it. Prints one line of
JSON with times in milliseconds: median, p90 and worst of the total, and the medians of writing and loading.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import torch
from engine_process import SHAPES, build_model, engine_process
from slime.config.sections import LoraConfig, LossConfig, TrainerConfig
from slime.engines.client import HttpEngine
from slime.plugins.losses import load_loss
from slime.protocols import GenerateRequest
from slime.trainers.torch.lora import add_lora
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, Sample, SampleGroup, SamplingParams
from slime.weights.adapters import Adapter, write_adapter
from transformers import Qwen3Config, Qwen3ForCausalLM

PROMPT = tuple(range(20, 52))
LOSS = Path(__file__).parents[2] / "openclaw-rl" / "custom_loss.py"


def trainer_of(model_dir: Path, lora: LoraConfig) -> TorchTrainer:
    """Binary RL's trainer, on this machine's CPU."""
    loss = LossConfig(eps_clip=0.99, eps_clip_high=99.0)  # whatever the model says: no step is to be skipped
    return TorchTrainer(model_dir, TrainerConfig(lr=1e-4), loss, loss_fn=load_loss(str(LOSS)), lora=lora, device="cpu")


def batch(version: int) -> Batch:
    """One reply of eight tokens with a positive or a negative score."""
    streams = {
        "loss_mask": (0,) * len(PROMPT) + (1,) * 8,
        "rollout_logprobs": (0.0,) * len(PROMPT) + (-6.0,) * 8,
        "policy_versions": (version,) * (len(PROMPT) + 8),
    }
    values = {"reward": 1.0 - version % 2 * 2, "temperature": 1.0}
    sample = Sample((*PROMPT, *range(60, 68)), streams, values, (f"t{version}",))
    return Batch((SampleGroup("g", (sample,)),))


@contextlib.asynccontextmanager
async def kept_busy(engine: HttpEngine) -> AsyncIterator[None]:
    """A stream that is always under way."""

    async def stream() -> None:
        while True:
            request = GenerateRequest(
                f"busy{time.monotonic_ns()}", PROMPT, SamplingParams(max_new_tokens=512), "policy"
            )
            async for _ in engine.stream(request):
                pass

    task = asyncio.create_task(stream())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def measure(model_dir: Path, work_dir: Path, lora: LoraConfig, versions: int) -> dict[str, float]:
    """Milliseconds from the end of a step to the version being served, and what was written."""
    trainer = trainer_of(model_dir, lora)
    saving: list[float] = []
    times: list[float] = []
    name = "policy" if lora.use_lora else ""
    with engine_process(model_dir) as process:
        async with HttpEngine(process.url, pause_mode=None) as engine, kept_busy(engine):
            for version in range(1, versions + 1):
                trainer.train(batch(version))
                began = time.perf_counter()
                weights_dir = trainer.save(work_dir) / "weights"
                saving.append(1000 * (time.perf_counter() - began))
                if lora.use_lora:
                    await engine.load_adapter(name, weights_dir, version)
                else:
                    await engine.update_weights(weights_dir, version)
                times.append(1000 * (time.perf_counter() - began))
                request = GenerateRequest(f"after{version}", PROMPT, SamplingParams(max_new_tokens=1), name)
                completion = await engine.generate(request)
                assert completion.policy_versions == (version,)
    served = [file for file in weights_dir.iterdir() if file.suffix == ".safetensors"]
    return {
        "median_ms": round(statistics.median(times), 1),
        "p90_ms": round(statistics.quantiles(times, n=10)[-1], 1),
        "worst_ms": round(max(times), 1),
        "median_checkpoint_ms": round(statistics.median(saving), 1),
        "median_load_ms": round(statistics.median(t - s for t, s in zip(times, saving, strict=True)), 1),
        "bytes": sum(file.stat().st_size for file in served),
    }


def bytes_of_shape(shape: str, lora: LoraConfig, work_dir: Path) -> dict[str, float]:
    """What an adapter for a model of that shape takes, written; the model's own weights are only counted."""
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], tie_word_embeddings=True))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    layers = add_lora(model, lora, seed=0)
    pairs = {m: (torch.zeros(a.shape), torch.zeros(b.shape)) for m, (a, b) in layers.adapter().pairs.items()}
    write_adapter(Adapter(layers.shape, pairs), work_dir / shape, name="policy", version=1, base="")
    adapter = sum(file.stat().st_size for file in (work_dir / shape).iterdir())
    return {
        "adapter_mb": round(adapter / 1e6, 1),
        "full_float32_mb": round(4 * num_parameters / 1e6, 1),
        "percent_of_float32": round(100 * adapter / (4 * num_parameters), 2),
        "percent_of_bfloat16": round(100 * adapter / (2 * num_parameters), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--versions", type=int, default=30)
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args()
    lora = LoraConfig(use_lora=True, lora_rank=options.rank)
    with tempfile.TemporaryDirectory() as directory:
        work_dir = Path(directory)
        model_dir = build_model(work_dir / "model", options.shape)
        adapter = asyncio.run(measure(model_dir, work_dir / "adapter", lora, options.versions))
        full = asyncio.run(measure(model_dir, work_dir / "full", LoraConfig(), options.versions))
        result = {
            "adapter": adapter,
            "full": full,
            "times_sooner": round(full["median_ms"] / adapter["median_ms"], 2),
            "0.6b": bytes_of_shape("0.6b", lora, work_dir),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
