"""Compares trained tokens/s of the embedded trainer and TRL's GRPOTrainer on the same ragged batch and model.

    python -m venv .venv-trl                              (TRL is not among the project's own dependencies)
    .venv-trl/bin/pip install torch==2.13.0 transformers==5.23.0 trl==1.16.0
    PYTHONPATH=slime .venv-trl/bin/python benchmarks/random_weights/trainer_vs_trl.py [--sequences 32] [--steps 4]

One process, one thread. Both get the same prompts, completions, advantages and rollout log-probs, and make complete
updates: forward, backward, clipping, AdamW. TRL runs its own training loop, with generation replaced by the batch. The
gradients of the first update are compared first, since speed with another result is meaningless. Ours is timed before
and after TRL; prints one line of JSON with the medians.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from slime.config.sections import LossConfig, TrainerConfig
from slime.plugins.losses import load_loss
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, Sample, SampleGroup
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 2048
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Sequence:
    """One completion of a prompt, its advantage, and the log-prob of each completion token when it was sampled."""

    prompt_ids: list[int]
    completion_ids: list[int]
    advantage: float
    logprobs: list[float]


def write_model(directory: Path) -> None:
    """A random Qwen3 of about 2 million parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB_SIZE)}, unk_token="w0"))
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1").save_pretrained(directory)


def ragged_batch(model_dir: Path, number: int) -> list[Sequence]:
    """Sequences of 32 to 512 tokens, a quarter to three quarters of each prompt, with the model's own log-probs."""
    generator = torch.Generator().manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    sequences = []
    for _ in range(number):
        length = int(torch.randint(32, 513, (1,), generator=generator))
        prompt = int(length * (0.25 + 0.5 * torch.rand(1, generator=generator)))
        ids = torch.randint(2, VOCAB_SIZE, (length,), generator=generator)
        with torch.no_grad():
            logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        sampled = logprobs.gather(-1, ids[1:, None]).squeeze(-1)[prompt - 1 :].tolist()
        advantage = float(torch.randn(1, generator=generator))
        sequences.append(Sequence(ids[:prompt].tolist(), ids[prompt:].tolist(), advantage, sampled))
    return sequences


def our_batch(sequences: list[Sequence]) -> Batch:
    groups = []
    for index, sequence in enumerate(sequences):
        prompt, completion = len(sequence.prompt_ids), len(sequence.completion_ids)
        sample = Sample(
            token_ids=(*sequence.prompt_ids, *sequence.completion_ids),
            streams={
                "loss_mask": (0,) * prompt + (1,) * completion,
                "rollout_logprobs": (0.0,) * prompt + tuple(sequence.logprobs),
                "advantages": (sequence.advantage,) * (prompt + completion),
            },
            values={"reward": sequence.advantage, "temperature": 1.0},
            turn_ids=(f"t{index}",),
        )
        groups.append(SampleGroup(f"g{index}", (sample,)))
    return Batch(tuple(groups))


def trl_batch(sequences: list[Sequence]) -> dict[str, Tensor]:
    """As TRL lays it out: prompts padded on the left, completions on the right."""
    prompt_width = max(len(s.prompt_ids) for s in sequences)
    completion_width = max(len(s.completion_ids) for s in sequences)

    def padded(rows: list[list[Any]], width: int, *, left: bool) -> Tensor:
        return torch.tensor([[0] * (width - len(r)) * left + r + [0] * (width - len(r)) * (not left) for r in rows])

    completions = [s.completion_ids for s in sequences]
    return {
        "prompt_ids": padded([s.prompt_ids for s in sequences], prompt_width, left=True),
        "prompt_mask": padded([[1] * len(s.prompt_ids) for s in sequences], prompt_width, left=True),
        "completion_ids": padded(completions, completion_width, left=False),
        "completion_mask": padded([[1] * len(ids) for ids in completions], completion_width, left=False),
        "old_per_token_logps": padded([s.logprobs for s in sequences], completion_width, left=False).float(),
        "advantages": torch.tensor([s.advantage for s in sequences]),
        "num_items_in_batch": torch.tensor(sum(len(ids) for ids in completions)),
    }


class GivenBatchTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with its generation replaced by a batch; keeps the first gradient."""

    given: dict[str, Tensor]
    first_gradient: dict[str, Tensor] | None = None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        return dict(self.given)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        if self.first_gradient is None:
            self.first_gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
        return loss


class StepTimes(TrainerCallback):
    """Wall time of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def run_trl(
    model_dir: Path, sequences: list[Sequence], steps: int, out_dir: Path
) -> tuple[list[float], dict[str, Tensor]]:
    times = StepTimes()
    trainer = GivenBatchTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=PreTrainedTokenizerFast.from_pretrained(model_dir),
        train_dataset=Dataset.from_dict({"prompt": ["w2"] * len(sequences)}),
        callbacks=[times],
        args=GRPOConfig(
            output_dir=str(out_dir),
            per_device_train_batch_size=len(sequences),
            num_generations=len(sequences),
            max_steps=steps,
            loss_type="grpo",
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            learning_rate=LEARNING_RATE,
            max_grad_norm=1.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    trainer.given = trl_batch(sequences)
    trainer.train()
    assert trainer.first_gradient is not None
    return times.seconds, trainer.first_gradient


def our_trainer(model_dir: Path) -> TorchTrainer:
    return TorchTrainer(
        model_dir,
        TrainerConfig(lr=LEARNING_RATE),
        LossConfig(kl_loss_coef=0.0, eps_clip=0.2, eps_clip_high=0.28),
        loss_fn=load_loss(str(ROOT / "openclaw-rl" / "custom_loss.py")),
        device="cpu",
    )


def first_gradient(trainer: TorchTrainer, batch: Batch) -> dict[str, Tensor]:
    """The gradient of one update, as the optimizer is about to consume it."""
    caught: dict[str, Tensor] = {}
    optimizer, apply = trainer._optimizer, trainer._optimizer.apply

    def catch(loss: float) -> Any:
        caught.update({name: p.grad.clone() for name, p in optimizer.parameters.items() if p.grad is not None})
        return apply(loss)

    optimizer.apply = catch  # type: ignore[method-assign]
    trainer.train(batch)
    optimizer.apply = apply  # type: ignore[method-assign]
    return caught


def time_ours(trainer: TorchTrainer, batch: Batch, steps: int) -> list[float]:
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        trainer.train(batch)
        seconds.append(time.perf_counter() - began)
    return seconds


def relative_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    distance = sum(float((ours[name] - theirs[name]).double().square().sum()) for name in ours)
    size = sum(float(tensor.double().square().sum()) for tensor in theirs.values())
    return math.sqrt(distance / size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4, help="timed updates of each")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        model_dir = Path(directory) / "model"
        write_model(model_dir)
        sequences = ragged_batch(model_dir, options.sequences)
        trainer, batch = our_trainer(model_dir), our_batch(sequences)
        ours_gradient = first_gradient(trainer, batch)
        ours = time_ours(trainer, batch, options.steps // 2)
        theirs, their_gradient = run_trl(model_dir, sequences, options.steps + 1, Path(directory) / "trl")
        ours += time_ours(trainer, batch, options.steps - options.steps // 2)
    trained = sum(len(sequence.completion_ids) for sequence in sequences)
    our_speed, their_speed = trained / statistics.median(ours), trained / statistics.median(theirs[1:])
    lengths = [len(s.prompt_ids) + len(s.completion_ids) for s in sequences]
    padded = trl_batch(sequences)
    result = {
        "benchmark": "trainer_vs_trl",
        "sequences": options.sequences,
        "tokens": sum(lengths),
        "tokens_padded": options.sequences * (padded["prompt_ids"].shape[1] + padded["completion_ids"].shape[1]),
        "trained_tokens": trained,
        "ours_tokens_per_s": round(our_speed),
        "trl_tokens_per_s": round(their_speed),
        "ratio": round(our_speed / their_speed, 2),
        "gradient_relative_difference": relative_difference(ours_gradient, their_gradient),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
