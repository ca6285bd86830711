"""Compares training a session turn by turn, with prefix sharing, and stitched: tokens, step time, gradients.

    python benchmarks/random_weights/stitching.py [--turns 8] [--sessions 2] [--shape tiny] [--rounds 5] [--output FILE]

Chat sessions: a system prompt of 200 tokens, questions of 15 to 40, replies of 60 to 150; each prompt contains all
earlier turns. Three ways to train the same turns with Binary RL's loss, in the real trainer:

    turn by turn   every turn is forwarded separately
    joined         every turn is a sample, as in a run; the trainer forwards shared prefixes once
    stitched       every session is one sample, as `stitch` builds it from complete sessions

Gradients are compared with those of turn by turn, float32: the largest element-wise difference, and the norm of the
difference relative to the gradient's. Times are medians of whole updates, the ways alternating.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from engine_process import SHAPES, build_model
from rich.console import Console
from rich.table import Table
from slime.config.sections import LossConfig, TrainerConfig
from slime.data.stitching import ScoredTurn, stitch
from slime.plugins.losses import LossHook, load_loss
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, Completion, Sample, SampleGroup, SamplingParams, Turn, TurnKind, VersionSpan
from torch import Tensor

LOSS = Path(__file__).parents[2] / "openclaw-rl" / "custom_loss.py"
SYSTEM, QUESTION, REPLY = 200, (15, 41), (60, 151)
WAYS = ("turn by turn", "joined", "stitched")


class TurnByTurn(LossHook):
    """A loss that has every sample fed by itself, as one does that reads which tokens are of one sample."""

    sees_samples = True


def session(number: int, num_turns: int, vocab_size: int) -> list[ScoredTurn]:
    """Turns of one conversation, judged good and bad in turn; log-probs as of a policy that is near."""
    generator = torch.Generator().manual_seed(number)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, vocab_size, (length,), generator=generator).tolist())

    def between(bounds: tuple[int, int]) -> int:
        return int(torch.randint(*bounds, (1,), generator=generator))

    history, turns = draw(SYSTEM), []
    for index in range(num_turns):
        prompt, reply = history + draw(between(QUESTION)), draw(between(REPLY))
        history = prompt + reply
        turn = Turn(
            turn_id=f"s{number}t{index}",
            session_id=f"session{number}",
            parent_id=None,
            kind=TurnKind.MAIN,
            messages=(),
            prompt_ids=prompt,
            completion=Completion(reply, (-7.0,) * len(reply), "", "stop", (VersionSpan(0, 0, len(reply)),)),
            sampling=SamplingParams(temperature=1.0),
            reply={"role": "assistant", "content": ""},
        )
        turns.append(ScoredTurn(turn, 1.0 - 2.0 * (index % 2)))
    return turns


def batch_of(samples: Sequence[Sample]) -> Batch:
    """Every sample a group of its own."""
    return Batch(tuple(SampleGroup(f"g{index}", (sample,)) for index, sample in enumerate(samples)))


def batches(sessions: Sequence[Sequence[ScoredTurn]]) -> dict[str, Batch]:
    """The same turns for each way."""
    apart = [sample for turns in sessions for turn in turns for sample in stitch([turn], source="ada")]
    whole = [sample for turns in sessions for sample in stitch(turns, source="ada")]
    together = batch_of(apart)
    return dict(zip(WAYS, (together, together, batch_of(whole)), strict=True))


def trainer_of(model_dir: Path, way: str) -> TorchTrainer:
    """Binary RL's trainer; nothing about it differs but what is fed."""
    hook = load_loss(str(LOSS))
    loss = LossConfig(eps_clip=0.99, eps_clip_high=99.0)  # whatever the model says: every token has a gradient
    loss_fn = TurnByTurn(hook.call) if way == "turn by turn" else hook
    return TorchTrainer(model_dir, TrainerConfig(lr=0.0, weight_decay=0.0), loss, loss_fn=loss_fn, device="cpu")


def step(trainer: TorchTrainer, batch: Batch) -> tuple[float, dict[str, float], dict[str, Tensor]]:
    """Seconds of one update, its metrics, and the gradient as it stood before the optimizer."""
    gradients: dict[str, Tensor] = {}
    apply = trainer._optimizer.apply

    def kept(loss: float) -> Any:
        gradients.update({n: p.grad.clone() for n, p in trainer._optimizer.parameters.items() if p.grad is not None})
        return apply(loss)

    trainer._optimizer.apply = kept  # type: ignore[method-assign]
    try:
        began = time.perf_counter()
        report = trainer.train(batch)
        return time.perf_counter() - began, dict(report.metrics), gradients
    finally:
        trainer._optimizer.apply = apply  # type: ignore[method-assign]


def measure(model_dir: Path, given: Mapping[str, Batch], rounds: int) -> dict[str, dict[str, float]]:
    """The figures of each way."""
    trainers = {way: trainer_of(model_dir, way) for way in given}
    firsts = {way: step(trainers[way], batch) for way, batch in given.items()}
    seconds: dict[str, list[float]] = {way: [] for way in given}
    for _ in range(rounds):
        for way, batch in given.items():
            seconds[way].append(step(trainers[way], batch)[0])
    expected = firsts["turn by turn"][2]
    return {
        way: {
            "fed_tokens": metrics["train/fed_tokens"],
            "trained_tokens": metrics["train/tokens"],
            "seconds": statistics.median(seconds[way]),
            "largest_difference": max(float((gradients[n] - g).abs().max()) for n, g in expected.items()),
            "relative_difference": _norm(gradients[n] - g for n, g in expected.items()) / _norm(expected.values()),
        }
        for way, (_, metrics, gradients) in firsts.items()
    }


def _norm(tensors: Any) -> float:
    return float(sum(tensor.double().square().sum() for tensor in tensors)) ** 0.5


def table(found: Mapping[str, Mapping[str, float]], title: str) -> Table:
    """A row for each way."""
    shown = Table(title=title)
    shown.add_column("", no_wrap=True)
    for heading in ("tokens fed", "fewer", "ms a step", "sooner", "largest\ndifference", "share of\nthe norm"):
        shown.add_column(heading, justify="right")
    base = found["turn by turn"]
    for way, figures in found.items():
        shown.add_row(
            way,
            f"{figures['fed_tokens']:.0f}",
            f"{base['fed_tokens'] / figures['fed_tokens']:.2f} ×",
            f"{1000 * figures['seconds']:.0f}",
            f"{base['seconds'] / figures['seconds']:.2f} ×",
            f"{figures['largest_difference']:.1e}",
            f"{figures['relative_difference']:.1e}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="the figures as JSON")
    options = parser.parse_args()
    vocab_size = SHAPES[options.shape]["vocab_size"]
    sessions = [session(number, options.turns, vocab_size) for number in range(options.sessions)]
    with tempfile.TemporaryDirectory() as directory:
        model_dir = build_model(Path(directory), options.shape)
        found = measure(model_dir, batches(sessions), options.rounds)
    title = (
        f"{options.sessions} sessions of {options.turns} turns, {found['joined']['trained_tokens']:.0f} tokens trained"
    )
    Console().print(table(found, title))
    if options.output:
        settings = {name: str(value) for name, value in vars(options).items()}
        options.output.write_text(json.dumps({"settings": settings, "ways": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
