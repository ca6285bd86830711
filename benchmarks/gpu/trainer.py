"""Benchmarks the embedded trainer on the device: tokens/s, MFU and peak memory, against a plain training loop.

    the same random weights and documents ─┬─ TorchTrainer, all weights ─┐
                                           ├─ TorchTrainer, an adapter ──┼─▶ tokens/s, MFU, peak memory
                                           └─ transformers + AdamW ──────┘

The baseline makes a step of cross entropy on the same documents, padded to a rectangle: float32 weights, matrix
products in bfloat16 on CUDA. Ours does more per token (a reference, ratios, KL). MFU counts 6 operations per parameter
and token for all weights, 4 for an adapter, relative to the rate of a large matrix product in this run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from engine_process import SHAPES, build_model
from measuring import Results, arguments, compute_type, median_s, peak_flops, peak_memory_gb
from samples import random_batch
from slime.config.sections import LoraConfig, LossConfig, TrainerConfig
from slime.plugins.losses import load_loss
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch
from transformers import AutoConfig, AutoModelForCausalLM

LOSS = Path(__file__).parents[2] / "openclaw-rl" / "custom_loss.py"


def ours(model_dir: Path, batch: Batch, lora: bool, device: Any, kl: float, rounds: int) -> dict[str, Any]:
    """A trainer of Binary RL; without KL there is no reference model beside it."""
    trainer = TorchTrainer(
        model_dir,
        TrainerConfig(lr=1e-6, gradient_checkpointing=True),
        LossConfig(eps_clip=0.99, eps_clip_high=99.0, kl_loss_coef=kl),
        loss_fn=load_loss(str(LOSS)),
        lora=LoraConfig(use_lora=lora, lora_rank=16),
        device=device,
    )
    seconds = median_s(lambda: trainer.train(batch), device, rounds)
    return {"s_a_step": seconds, "peak_memory_gb": peak_memory_gb(device)}


def plain(model_dir: Path, batch: Batch, device: str, rows: int, rounds: int) -> dict[str, Any]:
    """transformers' model and torch's AdamW, `rows` documents at a time, gradients of all of them added up."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).to(device)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.tensor([s.token_ids for group in batch.groups for s in group.samples], device=device)

    def step() -> None:
        for part in ids.split(rows):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = model(input_ids=part, labels=part).loss
            (loss * len(part) / len(ids)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return {"s_a_step": median_s(step, device, rounds), "peak_memory_gb": peak_memory_gb(device)}


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    shape = "tiny" if args.tiny else args.shape
    size = (2, 2, 24) if args.tiny else (8, 4, 1024)
    rounds = 1 if args.tiny else 3
    dtype = compute_type(args.device)
    results = Results(args.out, f"trainer-{shape}", args.device)
    peak = peak_flops(args.device, dtype, 256 if args.tiny else 8192)
    batch = random_batch(SHAPES[shape]["vocab_size"], *size)
    num_tokens = size[0] * size[1] * size[2]
    with tempfile.TemporaryDirectory() as folder:
        model_dir = build_model(Path(folder), shape, dtype, args.device)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
        num_parameters = sum(p.numel() for p in empty.parameters())

        def figures(found: dict[str, Any], operations: int) -> dict[str, Any]:
            rate = num_tokens / found["s_a_step"]
            return {"tokens_per_s": rate, "mfu": operations * num_parameters * rate / peak, **found}

        def full(kl: float) -> dict[str, Any]:
            return figures(ours(model_dir, batch, False, args.device, kl, rounds), 6)

        rows = 2 if args.tiny else 4
        results.attempt("adapter", lambda: figures(ours(model_dir, batch, True, args.device, 0.0, rounds), 4))
        results.attempt("baseline: plain loop", lambda: figures(plain(model_dir, batch, args.device, rows, rounds), 6))
        results.attempt("all weights", lambda: full(0.0))
        results.attempt("all weights, KL to a reference", lambda: full(0.1))
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
