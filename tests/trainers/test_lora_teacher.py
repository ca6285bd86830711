"""An adapter learns from the teacher: a step goes where the teacher points, and nowhere when the teacher is silent."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from learners import ROOT, batch_of, gradients_of, logprobs_of, random_samples, trainer_of
from slime.config.sections import LoraConfig
from slime.plugins.losses import load_loss
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, Sample
from slime.weights.adapters import merge_adapter, read_adapter

LORA = LoraConfig(use_lora=True, lora_rank=8, lora_alpha=16.0)
SCALE = 2.0  # alpha / rank
LOSSES = {"opd": ROOT / "openclaw-opd", "combine": ROOT / "openclaw-combine"}


def trainer(policy_dir: Path, method: str, lora: LoraConfig = LORA, **loss: float) -> TorchTrainer:
    hook = load_loss(str(LOSSES[method] / "custom_loss.py"))
    return trainer_of(policy_dir, loss={"kl_loss_coef": 0.0, **loss}, loss_fn=hook, lora=lora, lr=3e-3)


def lessons(policy_dir: Path, *, has_teacher: bool = True) -> list[Sample]:
    """Replies of the policy itself that nobody rewarded; of their tokens the teacher likes every other one."""
    made = []
    for sample in random_samples(6, seed=2):
        length = len(sample.token_ids)
        sampled = (0.0, *logprobs_of(policy_dir, sample.token_ids).tolist())
        opinion = [1.0 if position % 2 else -1.0 for position in range(length)]
        streams = {
            **sample.streams,
            "rollout_logprobs": sampled,
            "teacher_logprobs": tuple(logprob + o for logprob, o in zip(sampled, opinion, strict=True)),
            "has_teacher": (int(has_teacher),) * length,
            "has_reward": (0,) * length,
        }
        made.append(dataclasses.replace(sample, streams=streams, values={"reward": 0.0, "temperature": 1.0}))
    return made


def mean_rise(model_dir: Path, before_dir: Path, samples: list[Sample], *, liked: bool) -> float:
    """How much likelier the trained tokens that the teacher likes, or dislikes, have become."""
    rises = []
    for sample in samples:
        change = logprobs_of(model_dir, sample.token_ids) - logprobs_of(before_dir, sample.token_ids)
        places = [i for i, flag in enumerate(sample.streams["loss_mask"]) if flag and bool(i % 2) == liked]
        rises += change[[place - 1 for place in places]].tolist()
    return sum(rises) / len(rises)


@pytest.mark.parametrize("method", LOSSES)
def test_a_step_makes_likelier_what_the_teacher_likes(policy_dir: Path, tmp_path: Path, method: str) -> None:
    samples = lessons(policy_dir)
    learner = trainer(policy_dir, method)
    assert not learner.train(batch_of(samples)).skipped
    learner.publish(tmp_path / "adapter")
    merge_adapter(policy_dir, tmp_path / "adapter", tmp_path / "merged")
    assert mean_rise(tmp_path / "merged", policy_dir, samples, liked=True) > 0.01
    assert mean_rise(tmp_path / "merged", policy_dir, samples, liked=False) < -0.01


@pytest.mark.parametrize("method", LOSSES)
def test_without_the_teacher_the_same_step_changes_nothing(policy_dir: Path, tmp_path: Path, method: str) -> None:
    for number, (samples, w_opd) in enumerate(
        ((lessons(policy_dir, has_teacher=False), 1.0), (lessons(policy_dir), 0.0))
    ):
        learner = trainer(policy_dir, method, w_opd=w_opd)
        assert "the gradient is zero" in learner.train(batch_of(samples)).skipped
        learner.publish(tmp_path / str(number))
        assert not any(b.any() for _, b in read_adapter(tmp_path / str(number)).pairs.values())


@pytest.mark.parametrize("method", LOSSES)
def test_the_teachers_gradient_is_the_full_one_projected(policy_dir: Path, tmp_path: Path, method: str) -> None:
    """y = W x + α/r · B A x with B = 0: dL/dB = α/r · G Aᵀ and dL/dA = 0, G the gradient with all weights trained."""
    batch: Batch = batch_of(lessons(policy_dir))
    learner = trainer(policy_dir, method)
    learner.publish(tmp_path / "new")
    found = gradients_of(learner, batch)
    full = gradients_of(trainer(policy_dir, method, LoraConfig()), batch)
    pairs = read_adapter(tmp_path / "new").pairs
    assert len(pairs) == 14, "every linear layer of both blocks"
    for module, (a, _) in pairs.items():
        expected = SCALE * full[f"{module}.weight"] @ a.T
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(found[f"{module}.lora_B"], expected, rtol=1e-4, atol=1e-6)
        assert not found[f"{module}.lora_A"].any()
