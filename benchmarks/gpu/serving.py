"""Measures the time from a step to its served weights, and request latency meanwhile, on one shared device.

    clients, a process of their own ─▶ engine ◀─ weights ─ trainer
       every request's start and first token         step, save, load, one token under the new version

The latency baseline, `quiet`, is the same run before the trainer starts. Full weights and an adapter are measured in
sequence, each with its own engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from engine_process import SHAPES, build_model, engine_process
from measuring import Results, arguments, compute_type, free_memory
from samples import random_batch
from slime.config.sections import LoraConfig, LossConfig, TrainerConfig
from slime.engines.client import HttpEngine
from slime.plugins.losses import load_loss
from slime.protocols import GenerateRequest
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import SamplingParams

LOSS = Path(__file__).parents[2] / "openclaw-rl" / "custom_loss.py"
NUM_CLIENTS = 4
FEWEST = 8
"""Requests that a span is measured by at least."""


async def clients(url: str, vocab_size: int, adapter: str, stop: Path) -> None:
    """Ask without a pause until the file `stop` is there; a line for each request: its start, first token and end."""
    rng = random.Random(0)

    async def client(number: int) -> None:
        count = 0
        while not stop.exists():  # noqa: ASYNC240 - a look at a local file between two requests
            prompt = tuple(rng.randrange(3, vocab_size) for _ in range(128))
            request = GenerateRequest(f"c{number}-{count}", prompt, SamplingParams(max_new_tokens=32), adapter)
            start, first, count = time.monotonic(), 0.0, count + 1
            async for _ in engine.stream(request):
                first = first or time.monotonic()
            print(json.dumps([start, first, time.monotonic()]), flush=True)

    async with HttpEngine(url) as engine:
        await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))


async def publish(url: str, trainer: TorchTrainer, batch: Any, folder: Path, steps: int, lora: bool) -> dict[str, Any]:
    """Milliseconds of each part of an update, medians; the last is from the end of the step to the version served."""
    times: dict[str, list[float]] = {"step_ms": [], "save_ms": [], "load_ms": [], "step_to_served_ms": []}
    async with HttpEngine(url, pause_mode=None) as engine:
        for version in range(1, steps + 1):
            began = time.monotonic()
            report = await asyncio.to_thread(trainer.train, batch)
            assert not report.skipped, report.skipped
            stepped = time.monotonic()
            weights = await asyncio.to_thread(trainer.save, folder) / "weights"
            saved = time.monotonic()
            await (engine.load_adapter("policy", weights, version) if lora else engine.update_weights(weights, version))
            loaded = time.monotonic()
            one = GenerateRequest(f"v{version}", (5, 6, 7), SamplingParams(max_new_tokens=1), "policy" if lora else "")
            completion = await engine.generate(one)
            assert completion.policy_versions == (version,), completion.policy_versions
            for name, seconds in zip(
                times, (stepped - began, saved - stepped, loaded - saved, time.monotonic() - stepped), strict=True
            ):
                times[name].append(1000 * seconds)
    return {name: statistics.median(values) for name, values in times.items()} | {"updates": steps}


def read_rows(process: subprocess.Popen[str], rows: list[list[float]]) -> None:
    """Every line that the clients print, until they end."""
    for line in process.stdout or ():
        rows.append(json.loads(line))


def wait_for(rows: list[list[float]], number: int, deadline_s: float = 120.0) -> None:
    """Until so many requests are answered: on a slow machine a span of time may hold none."""
    deadline = time.monotonic() + deadline_s
    while len(rows) < number:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(rows)} requests were answered in {deadline_s:g} s, {number} were waited for")
        time.sleep(0.02)


def latencies(rows: list[list[float]], begin: float, end: float) -> dict[str, float]:
    """Of the requests that began in a span: how many, first token and whole answer at p50 and p99, in ms."""
    chosen = [row for row in rows if begin <= row[0] < end]
    found: dict[str, float] = {"requests": len(chosen)}
    for name, index in (("first_token", 1), ("answer", 2)):
        values = sorted(1000 * (row[index] - row[0]) for row in chosen)
        for share in (50, 99):
            found[f"{name}_p{share}_ms"] = values[min(len(values) - 1, len(values) * share // 100)] if values else -1.0
    return found


def measure(args: argparse.Namespace, model_dir: Path, folder: Path, shape: str, lora: bool) -> dict[str, Any]:
    quiet_s, steps, size = (0.0, 2, (2, 2, 24)) if args.tiny else (30.0, 8, (8, 4, 512))
    vocab = SHAPES[shape]["vocab_size"]
    trainer = TorchTrainer(
        model_dir,
        TrainerConfig(lr=1e-6, gradient_checkpointing=True),
        LossConfig(eps_clip=0.99, eps_clip_high=99.0, kl_loss_coef=0.0),
        loss_fn=load_loss(str(LOSS)),
        lora=LoraConfig(use_lora=lora, lora_rank=16),
        keep_checkpoints=2,
        device=args.device,
    )
    batch = random_batch(vocab, *size)
    stop = folder / "stop"
    kv = str(8 << 30 if args.device == "cuda" else 64 << 20)
    with engine_process(model_dir, "--device", args.device, "--kv-cache-bytes", kv) as server:
        command = [sys.executable, __file__, "--clients", server.url, str(vocab), str(stop)]
        asking = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        rows: list[list[float]] = []
        reader = threading.Thread(target=read_rows, args=(asking, rows), daemon=True)
        reader.start()
        try:
            wait_for(rows, FEWEST)  # until it is warm
            began, answered = time.monotonic(), len(rows)
            time.sleep(quiet_s)
            wait_for(rows, answered + FEWEST + NUM_CLIENTS)
            training = time.monotonic()
            updates = asyncio.run(publish(server.url, trainer, batch, folder, steps, lora))
            ended = time.monotonic()
            stop.touch()
            reader.join(timeout=120)
        finally:
            asking.kill()
            asking.wait()
    quiet, busy = latencies(rows, began, training), latencies(rows, training, ended)
    ratio = busy["first_token_p99_ms"] / quiet["first_token_p99_ms"]
    both = {
        f"{name}_{key}": value for name, part in (("quiet", quiet), ("training", busy)) for key, value in part.items()
    }
    return {**updates, **both, "p99_ratio": ratio}


def main() -> int:
    if sys.argv[1:2] == ["--clients"]:
        url, vocab, stop = sys.argv[2:5]
        asyncio.run(clients(url, int(vocab), "", Path(stop)))
        return 0
    args = arguments(__doc__ or "").parse_args()
    shape = "tiny" if args.tiny else args.shape
    results = Results(args.out, f"serving-{shape}", args.device)
    with tempfile.TemporaryDirectory() as scratch:
        model_dir = build_model(Path(scratch) / "model", shape, compute_type(args.device), args.device)
        free_memory()
        for name, lora in (("adapter", True), ("all weights", False)):
            folder = Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            results.attempt(name, lambda lora=lora, folder=folder: measure(args, model_dir, folder, shape, lora))
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
