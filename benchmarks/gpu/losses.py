"""Compares every loss on the device with the CPU: one update each, full weights and LoRA, float32.

    the same weights and batch ─┬─ trainer on the CPU    ─▶ loss, gradient norm, weights' change ─┐
                                └─ trainer on the device ─▶ loss, gradient norm, weights' change ─┴─▶ how far apart

The baseline is a plain step of cross entropy with transformers alone, on both: the difference that the device's
arithmetic causes by itself. A loss passes when its difference is not much larger.
"""

from __future__ import annotations

import sys
import tempfile
import typing
from pathlib import Path
from typing import Any

import openclaw_combine  # noqa: F401 - registers the fields of top-k distillation
import torch
from engine_process import SHAPES, build_model
from measuring import Results, arguments
from samples import random_batch
from slime.config.sections import LoraConfig, LossConfig, TeacherConfig, TrainerConfig
from slime.plugins.losses import load_loss
from slime.plugins.settings import plugin_settings
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parents[2]
TOP_K = 4
TEACHERS = {
    "opd": "openclaw-opd/custom_loss.py",
    "opd top-k": "openclaw-opd/custom_loss_topk.py",
    "combine": "openclaw-combine/custom_loss.py",
    "combine select": "openclaw-combine/custom_loss_select.py",
}
"""Losses with a teacher, beside the estimators of Binary RL."""

State = tuple[float, float, torch.Tensor]
"""Loss, gradient norm, and the change of all trained weights in one vector."""


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name → file of the loss and settings that differ from the defaults."""
    binary = "openclaw-rl/custom_loss.py"
    estimators = typing.get_args(typing.get_type_hints(LossConfig)["advantage_estimator"])
    named = {name: (binary, {"advantage_estimator": name}) for name in estimators}
    kinds = typing.get_args(typing.get_type_hints(LossConfig)["kl_loss_type"])
    named |= {f"kl {kind}": (binary, {"kl_loss_type": kind}) for kind in kinds}
    return {**named, **{name: (path, {}) for name, path in TEACHERS.items()}}


def update(model_dir: Path, case: tuple[str, dict[str, Any]], batch: Batch, lora: bool, device: Any) -> State:
    """One update of a new trainer."""
    path, changes = case
    loss = LossConfig(**{"eps_clip": 0.99, "eps_clip_high": 99.0, **changes})
    top_k = {"teacher_top_k": TOP_K} if "topk" in path or "select" in path else {}
    settings = {**plugin_settings(TeacherConfig(**top_k)), **plugin_settings(loss)}
    trainer = TorchTrainer(
        model_dir, TrainerConfig(lr=1e-3), loss, loss_fn=load_loss(str(ROOT / path)), device=device, dtype="float32",
        lora=LoraConfig(use_lora=lora, lora_rank=8), settings=settings,
    )  # fmt: skip
    weights = [p for p in trainer._policy.model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in weights]
    report = trainer.train(batch)
    if report.skipped:
        raise RuntimeError(f"{case}: the update was skipped: {report.skipped}")
    change = torch.cat([(p.detach() - old).flatten().cpu() for p, old in zip(weights, before, strict=True)])
    return report.metrics["loss/total"], report.metrics["train/grad_norm"], change


def plain_update(model_dir: Path, batch: Batch, device: str) -> State:
    """One step of cross entropy on the same documents, by transformers and torch."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).to(device)
    ids = torch.tensor([s.token_ids for group in batch.groups for s in group.samples], device=device)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    change = torch.cat([(p.detach() - old).flatten().cpu() for p, old in zip(model.parameters(), before, strict=True)])
    return float(loss), float(norm), change


def apart(cpu: State, device: State) -> dict[str, float]:
    """Differences of loss and gradient norm as shares, and 1 − the cosine between the two changes of the weights."""
    cosine = torch.nn.functional.cosine_similarity(cpu[2].double(), device[2].double(), dim=0)
    return {
        "loss": abs(device[0] - cpu[0]) / max(abs(cpu[0]), 1e-3),
        "grad_norm": abs(device[1] - cpu[1]) / max(cpu[1], 1e-6),
        "change": 1 - float(cosine),
    }


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    shape = "tiny"  # numbers are compared here, and a CPU has to keep up
    size = (2, 2, 24) if args.tiny else (4, 4, 128)
    results = Results(args.out, "losses", args.device)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = build_model(Path(folder), shape)
        vocab = SHAPES[shape]["vocab_size"]
        plain, with_ids = (random_batch(vocab, *size, top_k=k) for k in (0, TOP_K))
        baseline = apart(plain_update(model_dir, plain, "cpu"), plain_update(model_dir, plain, args.device))
        results.add("baseline: cross entropy by transformers", baseline)
        for name, case in cases().items():
            batch = with_ids if "topk" in case[0] or "select" in case[0] else plain
            for lora in (False, True):
                found = apart(*(update(model_dir, case, batch, lora, device) for device in ("cpu", args.device)))
                bound = {key: max(10 * baseline[key], 1e-3) for key in found}
                bad = {"failed": f"farther apart than {bound}"} if any(found[k] > bound[k] for k in found) else {}
                results.add(f"{name}, {'adapter' if lora else 'all weights'}", {**found, **bad})
    return results.finish()


if __name__ == "__main__":
    sys.exit(main())
