"""LoRA: at first the model itself, its gradient the full one projected, checkpoints bit for bit, nothing else kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from learners import (
    batch_of,
    gradients_of,
    logprobs_of,
    random_samples,
    relative_difference,
    trainer_of,
    write_policy,
)
from safetensors.torch import load_file
from slime.config.sections import LoraConfig
from slime.data.rows import flatten, rows
from slime.errors import ConfigError, WeightsError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook
from slime.trainers.torch.trainer import TorchTrainer
from slime.weights.adapters import fingerprint, is_adapter, merge_adapter, read_adapter, verify_adapter
from slime.weights.directories import read_manifest
from transformers import AutoModelForCausalLM

LORA = LoraConfig(use_lora=True, lora_rank=3, lora_alpha=6.0)


def lora_trainer(model_dir: Path, lora: LoraConfig = LORA, **settings: object) -> TorchTrainer:
    return trainer_of(model_dir, lora=lora, **settings)


def move(trainer: TorchTrainer, seed: int = 5) -> None:
    """Give the adapter some B, as though it had learned."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in trainer._policy.parameters().values():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)


def policy_logprobs(trainer: TorchTrainer, reference: bool = False) -> torch.Tensor:
    flat = flatten(rows(random_samples(4, seed=3)))
    forward = trainer._policy.reference() if reference else trainer._policy.forward
    with torch.no_grad():
        _, head = forward(flat)
        return head.logprobs_and_entropy(flat.targets)[0]


def test_a_new_adapter_changes_nothing(policy_dir: Path) -> None:
    trainer, full = lora_trainer(policy_dir), trainer_of(policy_dir)
    assert torch.equal(policy_logprobs(trainer), policy_logprobs(full)), "bit for bit"
    assert torch.equal(policy_logprobs(trainer), policy_logprobs(trainer, reference=True))
    assert trainer.train(batch_of(random_samples(5))).metrics["loss/kl"] == 0.0


@pytest.mark.parametrize("thrifty", [False, True])
def test_dropout_acts_on_the_gradient_and_on_no_ratio(policy_dir: Path, thrifty: bool) -> None:
    """Log-probs under dropout are those of the model that samples: the first ratio of an update is 1, old values and
    the KL are of the adapter that is served; the gradient is the dropped one, recomputed activations included."""
    seen: list[torch.Tensor] = []

    def compute_loss(policy_logprobs, proximal_logprobs, advantages, sum_of_sample_mean):
        seen.append((policy_logprobs - proximal_logprobs).detach().abs().max())
        return sum_of_sample_mean(-torch.exp(policy_logprobs - proximal_logprobs) * advantages)

    def dropping(share: float, recompute: bool = thrifty) -> TorchTrainer:
        lora = dataclasses.replace(LORA, lora_dropout=share)
        loss_fn = LossHook(NamedCall.match(compute_loss, LOSS.names))
        trainer = lora_trainer(
            policy_dir, lora, loss_fn=loss_fn, num_steps_per_rollout=2, gradient_checkpointing=recompute
        )
        move(trainer)
        return trainer

    batch = batch_of(random_samples(9))
    dropping(0.3).train(batch)
    assert len(seen) == 2
    assert seen[0] < 1e-5
    assert seen[1] > 1e-3
    assert torch.equal(policy_logprobs(dropping(0.3)), policy_logprobs(dropping(0.0)))
    gradient = gradients_of(dropping(0.3), batch)
    assert relative_difference(gradient, gradients_of(dropping(0.3, recompute=False), batch)) < 1e-4
    assert relative_difference(gradient, gradients_of(dropping(0.0), batch)) > 0.05


def test_only_the_adapter_is_trained_and_the_reference_stays_the_model_as_given(policy_dir: Path) -> None:
    trainer = lora_trainer(policy_dir)
    frozen = {n: p.clone() for n, p in trainer._policy.model.named_parameters() if "lora_" not in n}
    at_first = policy_logprobs(trainer)
    for seed in range(3):
        trainer.train(batch_of(random_samples(5, seed=seed)))
    assert not torch.allclose(policy_logprobs(trainer), at_first, atol=1e-3)
    assert torch.equal(policy_logprobs(trainer, reference=True), at_first)
    now = dict(trainer._policy.model.named_parameters())
    assert all(torch.equal(now[name], tensor) for name, tensor in frozen.items())
    assert all(now[name].grad is None for name in frozen)
    assert sorted(trainer._optimizer.parameters) == sorted(trainer._policy.parameters())
    assert all(name.endswith((".lora_A", ".lora_B")) for name in trainer._optimizer.parameters)


def test_the_gradient_is_the_full_models_projected(policy_dir: Path, tmp_path: Path) -> None:
    """y = (W + s·B·A) x, so dL/dB = s·G·Aᵀ and dL/dA = s·Bᵀ·G with G the gradient of the merged weight."""
    loss = {"kl_loss_coef": 0.0}  # the references differ: the model as given, and the merged one
    trainer = lora_trainer(policy_dir, loss=loss)
    move(trainer)
    trainer.publish(tmp_path / "adapter")
    merge_adapter(policy_dir, tmp_path / "adapter", tmp_path / "merged")
    adapter = read_adapter(tmp_path / "adapter")
    batch = batch_of(random_samples(5))
    found = gradients_of(trainer, batch)
    full = gradients_of(trainer_of(tmp_path / "merged", loss=loss), batch)
    assert len(adapter.pairs) == 14
    for module, (a, b) in adapter.pairs.items():
        gradient = full[f"{module}.weight"]
        torch.testing.assert_close(found[f"{module}.lora_B"], 2.0 * gradient @ a.T, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(found[f"{module}.lora_A"], 2.0 * b.T @ gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_resumed_run_is_bit_for_bit_the_one_that_went_on(policy_dir: Path, tmp_path: Path, dropout: float) -> None:
    lora = LoraConfig(use_lora=True, lora_rank=3, lora_alpha=6.0, lora_dropout=dropout)
    steady = lora_trainer(policy_dir, lora)
    for seed in range(3):
        steady.train(batch_of(random_samples(5, seed=seed)))
    steady.save(tmp_path / "stopped")
    reports = [steady.train(batch_of(random_samples(5, seed=seed))) for seed in (3, 4)]
    steady.save(tmp_path / "steady")
    torch.manual_seed(999)
    resumed = lora_trainer(policy_dir, lora)
    assert resumed.resume(tmp_path / "stopped").step == 3
    assert [resumed.train(batch_of(random_samples(5, seed=seed))) for seed in (3, 4)] == reports
    resumed.consumed = {step: ids for step, ids in resumed.consumed.items() if step > 3}
    resumed.save(tmp_path / "resumed")
    one, other = (read_manifest(tmp_path / name / "checkpoint-5") for name in ("steady", "resumed"))
    assert one.files == other.files


def test_a_checkpoint_holds_an_adapter_that_peft_loads_and_nothing_of_the_model(
    policy_dir: Path, tmp_path: Path
) -> None:
    from peft import PeftModel

    trainer = lora_trainer(policy_dir)
    move(trainer)
    trainer.train(batch_of(random_samples(5)))
    weights_dir = trainer.save(tmp_path) / "weights"
    manifest = verify_adapter(weights_dir, fingerprint(policy_dir))
    assert (manifest.version, manifest.adapter, is_adapter(weights_dir)) == (1, "policy", True)
    assert sorted(manifest.files) == ["adapter_config.json", "adapter_model.safetensors"]
    ids = (3, 9, 27, 20, 1, 44)
    merge_adapter(policy_dir, weights_dir, tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float32)
    with torch.no_grad():
        logits = PeftModel.from_pretrained(base, str(weights_dir))(input_ids=torch.tensor(ids)[None]).logits[0, :-1]
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[1:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs_of(tmp_path / "merged", ids), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logprobs_of(policy_dir, ids), expected, atol=1e-2)
    moments = load_file(tmp_path / "checkpoint-1" / "optimizer.safetensors")
    assert all("lora_" in name or name == "random.torch" for name in moments)
    assert json.loads((tmp_path / "checkpoint-1" / "state.json").read_text())["config"]["lora"]["lora_rank"] == 3


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (
            LoraConfig(use_lora=True, lora_rank=4, lora_alpha=6.0),
            "with --lora-rank 3 .* this run has --lora-rank 4",
        ),
        (LoraConfig(use_lora=True, lora_rank=3, lora_alpha=3.0), "--lora-alpha 6 .* --lora-alpha 3"),
        (
            LoraConfig(use_lora=True, lora_rank=3, lora_alpha=6.0, lora_target_modules="q_proj v_proj"),
            "q_proj,v_proj$",
        ),
        (LoraConfig(), "holds an adapter, and this run trains all weights: add --use-lora"),
    ],
)
def test_a_run_with_other_settings_is_refused_in_one_line(
    policy_dir: Path, tmp_path: Path, other: LoraConfig, complaint: str
) -> None:
    trainer = lora_trainer(policy_dir)
    trainer.train(batch_of(random_samples(5)))
    checkpoint = trainer.save(tmp_path)
    with pytest.raises(WeightsError, match=complaint) as caught:
        lora_trainer(policy_dir, other).load(checkpoint)
    assert "\n" not in str(caught.value)


def test_an_adapter_of_another_base_is_refused(policy_dir: Path, tmp_path: Path) -> None:
    other_dir = write_policy(tmp_path / "other", seed=1)
    trainer = lora_trainer(other_dir)
    trainer.train(batch_of(random_samples(5)))
    checkpoint = trainer.save(tmp_path / "saved")
    with pytest.raises(WeightsError, match="an adapter of other base weights"):
        lora_trainer(policy_dir).load(checkpoint)
    with pytest.raises(WeightsError, match="an adapter of other base weights"):
        merge_adapter(policy_dir, checkpoint / "weights", tmp_path / "merged")


def test_an_unknown_target_module_is_refused_by_name(policy_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"is called 'c_attn'; it has down_proj, gate_proj"):
        lora_trainer(policy_dir, LoraConfig(use_lora=True, lora_target_modules="c_attn"))


def test_recomputed_activations_give_the_same_gradient(policy_dir: Path) -> None:
    batch = batch_of(random_samples(5))
    plain, thrifty = lora_trainer(policy_dir), lora_trainer(policy_dir, gradient_checkpointing=True)
    one, other = gradients_of(plain, batch), gradients_of(thrifty, batch)
    assert any(gradient.abs().max() > 0 for gradient in one.values())
    for name, gradient in one.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-7)
