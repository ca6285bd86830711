"""What trainer tests are made of: a random policy in half a second, samples by hand, and the trainer of a loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from slime.config.sections import LossConfig, TrainerConfig
from slime.plugins.losses import LossHook, load_loss
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, Sample, SampleGroup
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).parents[2]
BINARY_RL = ROOT / "openclaw-rl" / "custom_loss.py"
VOCAB_SIZE = 61


def write_policy(directory: Path, seed: int = 0, **changes: Any) -> Path:
    """A tiny Qwen3 with random weights, written as a user's model directory."""
    config = Qwen3Config(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "dtype": torch.float32,
            **changes,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        for parameter in model.parameters():  # initial weights are so small that a wrong result would hardly show
            parameter.data += 0.08 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def logprobs_of(model_dir: Path, token_ids: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    """log p of every token but the first, by transformers alone: [T − 1]."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = torch.tensor(token_ids)
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0, :-1] / temperature
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[1:, None]).squeeze(-1)


def random_samples(number: int, seed: int = 0, longest: int = 40) -> list[Sample]:
    """Samples of ragged lengths with holes in their masks, made-up log-probs and rewards of ±1 or 0.5."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    samples = []
    for index in range(number):
        length = draw(5, longest)
        token_ids = tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist())
        prompt = draw(1, length - 1)
        mask = [0] * prompt + [int(draw(0, 5) > 0) for _ in range(length - prompt)]
        mask[prompt] = 1
        logprobs = (-4 + 0.4 * torch.randn(length, generator=generator)).clamp(max=0).tolist()
        samples.append(
            Sample(
                token_ids=token_ids,
                streams={
                    "loss_mask": tuple(mask),
                    "rollout_logprobs": tuple(logprobs),
                    "policy_versions": (0,) * length,
                },
                values={"reward": (1.0, -1.0, 0.5)[draw(0, 3)], "temperature": (1.0, 0.7)[draw(0, 2)]},
                turn_ids=(f"turn{index}",),
                trajectory_id=f"session{index * 2 // 3}",  # some trajectories have two samples
                source=f"user{index % 2}",
            )
        )
    return samples


def batch_of(samples: list[Sample]) -> Batch:
    """Every sample a group of its own."""
    return Batch(tuple(SampleGroup(f"group{i}", (sample,)) for i, sample in enumerate(samples)))


def trainer_of(
    model_dir: Path, *, loss: dict[str, Any] | None = None, loss_fn: LossHook | None = None, **settings: Any
) -> TorchTrainer:
    """A trainer on the CPU; Binary RL's loss unless another is given."""
    others = ("rank", "world_size", "keep_checkpoints", "lora", "settings")
    keywords = {name: settings.pop(name) for name in others if name in settings}
    return TorchTrainer(
        model_dir,
        TrainerConfig(**{"lr": 1e-2, **settings}),
        LossConfig(**(loss or {})),
        loss_fn=loss_fn or load_loss(str(BINARY_RL)),
        device="cpu",
        **keywords,
    )


def parameters_of(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    """A copy of every parameter."""
    return {name: p.detach().clone() for name, p in trainer._policy.model.named_parameters()}


def gradients_of(trainer: TorchTrainer, batch: Batch) -> dict[str, torch.Tensor]:
    """The summed gradient of one optimizer step over a batch, caught where the optimizer would consume it."""
    caught: dict[str, torch.Tensor] = {}
    apply = trainer._optimizer.apply

    def catch(loss: float) -> Any:
        caught.update({n: p.grad.clone() for n, p in trainer._optimizer.parameters.items() if p.grad is not None})
        return apply(loss)

    trainer._optimizer.apply = catch  # type: ignore[method-assign]
    trainer.train(batch)
    trainer._optimizer.apply = apply  # type: ignore[method-assign]
    return caught


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return when the condition holds; AssertionError when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


def relative_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """‖a − b‖ / ‖b‖ over all tensors together."""
    assert a.keys() == b.keys()
    distance = sum(float((a[name] - b[name]).double().square().sum()) for name in a)
    size = sum(float(b[name].double().square().sum()) for name in b)
    return (distance / size) ** 0.5
