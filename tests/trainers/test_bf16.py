"""bfloat16: the trainer computes the numbers that an engine does, and float32 masters keep what it cannot show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from learners import BINARY_RL, batch_of, gradients_of, random_samples, relative_difference, write_policy
from peft import PeftModel
from slime.config.sections import LoraConfig, LossConfig, TrainerConfig
from slime.data.rows import flatten, rows
from slime.errors import ConfigError
from slime.plugins.losses import load_loss
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Sample
from transformers import AutoModelForCausalLM

LORA = LoraConfig(use_lora=True, lora_rank=4)


@pytest.fixture(scope="module")
def deep_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve layers, stored in bfloat16: rounding adds up from layer to layer."""
    directory = tmp_path_factory.mktemp("deep")
    write_policy(directory / "exact", num_hidden_layers=12, hidden_size=64, intermediate_size=128)
    model = AutoModelForCausalLM.from_pretrained(directory / "exact", dtype=torch.bfloat16)
    model.save_pretrained(directory / "model")
    (directory / "model" / "tokenizer.json").write_text("{}")
    return directory / "model"


def trainer_in(
    model_dir: Path, dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16", **settings: Any
) -> TorchTrainer:
    loss = LossConfig(**{"kl_loss_coef": 0.0, **settings.pop("loss", {})})
    lora = settings.pop("lora", LoraConfig())
    config = TrainerConfig(**{"lr": 3e-3, **settings})
    loss_fn = load_loss(str(BINARY_RL))
    return TorchTrainer(model_dir, config, loss, loss_fn=loss_fn, lora=lora, device="cpu", dtype=dtype)


def by_engine(model_dir: Path, samples: list[Sample], adapter_dir: Path | None = None) -> torch.Tensor:
    """Log-probs of the trainable tokens by transformers with all of a model, and its adapter, in bfloat16."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    if adapter_dir is not None:
        model = PeftModel.from_pretrained(model, str(adapter_dir))
        for parameter in model.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
    found = []
    for sample in samples:
        ids = torch.tensor(sample.token_ids)
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1].float() / sample.values["temperature"]
        logprobs = logits.log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        found.append(logprobs[torch.tensor(sample.streams["loss_mask"][1:], dtype=torch.bool)])
    return torch.cat(found)


def by_trainer(trainer: TorchTrainer, samples: list[Sample]) -> torch.Tensor:
    flat = flatten(rows(samples))
    with torch.no_grad():
        _, head = trainer._policy.forward(flat)
        return head.logprobs_and_entropy(flat.targets)[0]


def copied(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@pytest.mark.parametrize("lora", [LoraConfig(), LORA], ids=["full", "lora"])
def test_log_probs_are_those_of_a_model_in_bfloat16_before_and_after_training(
    deep_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    trainer, samples = trainer_in(deep_dir, lora=lora, lr=3e-2 if lora.use_lora else 3e-3), random_samples(12)
    at_first = by_trainer(trainer, samples)
    assert (at_first - by_engine(deep_dir, samples)).abs().mean() < 2e-3
    for seed in range(3):
        assert not trainer.train(batch_of(random_samples(8, seed=seed))).skipped
    trainer.publish(tmp_path / "served")
    now = by_trainer(trainer, samples)
    served = (deep_dir, samples, tmp_path / "served") if lora.use_lora else (tmp_path / "served", samples)
    assert (now - by_engine(*served)).abs().mean() < 2e-3
    assert (now - at_first).abs().mean() > 0.05, "it has learned something"


def test_the_gradient_is_float32s_but_for_rounding(deep_dir: Path) -> None:
    batch = batch_of(random_samples(8))
    rounded, exact = (gradients_of(trainer_in(deep_dir, dtype), batch) for dtype in ("bfloat16", "float32"))
    assert all(gradient.dtype == torch.float32 for gradient in rounded.values())
    assert relative_difference(rounded, exact) < 0.15


@pytest.mark.slow
def test_micro_batches_are_added_up_in_float32(deep_dir: Path) -> None:
    batch = batch_of(random_samples(16))
    whole, apart = (gradients_of(trainer_in(deep_dir, max_tokens_per_gpu=n), batch) for n in (8192, 1))
    assert relative_difference(apart, whole) < 0.03


@pytest.mark.slow
def test_steps_too_small_for_bfloat16_add_up(deep_dir: Path) -> None:
    trainer = trainer_in(deep_dir, lr=1e-6, weight_decay=0.0)
    masters, weights = copied(trainer._policy.parameters()), copied(dict(trainer._policy.model.named_parameters()))
    name = "model.layers.0.mlp.up_proj.weight"
    for _ in range(12):
        assert not trainer.train(batch_of(random_samples(6))).skipped
    moved = (trainer._policy.parameters()[name] - masters[name]).abs().mean()
    assert 5e-6 < moved < 3e-5, "about a step of the learning rate each time"
    now = dict(trainer._policy.model.named_parameters())[name]
    assert now.dtype == torch.bfloat16
    assert torch.equal(now, trainer._policy.parameters()[name].to(torch.bfloat16))
    assert (now == weights[name]).float().mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["reinforce", "ppo"])
def test_a_resumed_run_is_bit_for_bit_the_one_that_went_on(deep_dir: Path, tmp_path: Path, estimator: str) -> None:
    settings: dict[str, Any] = {"loss": {"advantage_estimator": estimator}}
    trainer = trainer_in(deep_dir, **settings)
    trainer.train(batch_of(random_samples(8)))
    checkpoint = trainer.save(tmp_path)
    resumed = trainer_in(deep_dir, **settings)
    resumed.load(checkpoint)
    batch = batch_of(random_samples(8, seed=1))
    reports = [t.train(batch) for t in (trainer, resumed)]
    assert reports[0].metrics == reports[1].metrics
    other = resumed._policy.parameters()
    assert all(torch.equal(value, other[name]) for name, value in trainer._policy.parameters().items())


def test_a_skipped_step_leaves_masters_and_weights_as_they_were(deep_dir: Path) -> None:
    trainer = trainer_in(deep_dir)
    before = copied(trainer._policy.parameters())
    same = [dataclasses.replace(s, values={**s.values, "reward": 1.0}, source="ada") for s in random_samples(4)]
    assert trainer.train(batch_of(same)).skipped
    assert all(torch.equal(value, before[name]) for name, value in trainer._policy.parameters().items())
    assert all(parameter.grad is None for parameter in trainer._policy.parameters().values())


def test_the_kl_of_a_policy_to_itself_is_zero(deep_dir: Path) -> None:
    report = trainer_in(deep_dir, loss={"kl_loss_coef": 0.1}).train(batch_of(random_samples(4)))
    assert report.metrics["loss/kl"] == 0.0


def test_float16_is_refused_in_one_line(deep_dir: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"--dtype float16: .* train with --dtype bfloat16 or --dtype float32"
    ) as caught:
        trainer_in(deep_dir, "float16")
    assert "\n" not in str(caught.value)
