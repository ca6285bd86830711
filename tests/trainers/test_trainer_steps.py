"""What an update does around the gradient: warm-up, splitting, skipping, refusing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from learners import VOCAB_SIZE, batch_of, parameters_of, random_samples, trainer_of
from slime.errors import PluginError, TrainerError, WeightsError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook
from slime.protocols import Trainer
from slime.types import Sample


def hook(function) -> LossHook:
    return LossHook(NamedCall.match(function, LOSS.names))


def nan_loss(policy_logprobs, sum_of_sample_mean):
    return sum_of_sample_mean(policy_logprobs) * float("nan")


def infinite_gradient(policy_logprobs, sum_of_sample_mean):
    return sum_of_sample_mean(torch.sqrt((policy_logprobs - policy_logprobs.detach()).abs()))


def test_it_is_a_trainer(policy_dir: Path) -> None:
    assert isinstance(trainer_of(policy_dir), Trainer)


def test_rewards_move_probabilities_the_way_they_point(policy_dir: Path) -> None:
    good, bad = random_samples(2, seed=3)
    good = dataclasses.replace(good, values={"reward": 1.0, "temperature": 1.0}, source="ada", trajectory_id="good")
    bad = dataclasses.replace(bad, values={"reward": -1.0, "temperature": 1.0}, source="ada", trajectory_id="bad")
    changes: list[torch.Tensor] = []

    def compute_loss(policy_logprobs, rewards, advantages, sum_of_sample_mean):
        changes.append(torch.stack([policy_logprobs[rewards == r].mean() for r in (1.0, -1.0)]).detach())
        return sum_of_sample_mean(-policy_logprobs * advantages)

    trainer = trainer_of(policy_dir, loss_fn=hook(compute_loss))
    for _ in range(3):
        trainer.train(batch_of([good, bad]))
    assert changes[-1][0] > changes[0][0]
    assert changes[-1][1] < changes[0][1]


@pytest.mark.parametrize(("loss", "reason"), [(nan_loss, "the loss is nan"), (infinite_gradient, "norm is")])
def test_a_step_that_is_not_finite_leaves_no_trace_but_a_count(policy_dir: Path, loss, reason: str) -> None:
    trainer = trainer_of(policy_dir, loss_fn=hook(lambda policy_logprobs, advantages: -policy_logprobs.mean()))
    trainer.train(batch_of(random_samples(3)))
    parameters, moments = parameters_of(trainer), {k: v.clone() for k, v in trainer._optimizer.state().items()}
    baseline = trainer._baseline.state()
    trainer._scorer._loss_fn = hook(loss)
    report = trainer.train(batch_of(random_samples(3, seed=1)))
    assert (report.step, report.metrics["train/skipped_steps"]) == (1, 1.0)
    assert reason in report.skipped
    assert all(torch.equal(value, parameters[name]) for name, value in parameters_of(trainer).items())
    assert all(torch.equal(value, moments[name]) for name, value in trainer._optimizer.state().items())
    assert trainer._baseline.state() == baseline
    assert trainer.consumed.keys() == {1}


def test_the_learning_rate_warms_up_over_applied_steps(policy_dir: Path) -> None:
    trainer = trainer_of(policy_dir, lr=0.04, lr_warmup_steps=4)
    rates = [trainer.train(batch_of(random_samples(3, seed=seed))).metrics["train/learning_rate"] for seed in range(5)]
    assert rates == [pytest.approx(rate) for rate in (0.01, 0.02, 0.03, 0.04, 0.04)]


def test_the_gradient_is_clipped_to_its_norm(policy_dir: Path) -> None:
    norms: list[float] = []
    trainer = trainer_of(policy_dir, clip_grad=0.125)
    step = trainer._optimizer._adamw.step

    def measure():
        gradients = [p.grad for p in trainer._policy.model.parameters()]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        return step()

    trainer._optimizer._adamw.step = measure
    reported = trainer.train(batch_of(random_samples(3))).metrics["train/grad_norm"]
    assert norms == [pytest.approx(0.125, rel=1e-4)]
    assert reported > 0.125


def test_a_batch_in_several_optimizer_steps_is_one_update(policy_dir: Path) -> None:
    trainer = trainer_of(policy_dir, num_steps_per_rollout=3)
    assert trainer.train(batch_of(random_samples(9))).step == 1
    assert trainer._optimizer.num_steps == 3
    assert trainer.consumed == {1: tuple(f"turn{i}" for i in range(9))}


def test_metrics_of_a_step(policy_dir: Path) -> None:
    samples = random_samples(9)
    metrics = trainer_of(policy_dir).train(batch_of(samples)).metrics
    assert metrics["train/tokens"] == sum(sample.num_trainable_tokens for sample in samples)
    assert metrics.keys() >= {
        *("loss/total", "loss/policy", "loss/kl", "loss/entropy", "reward/mean", "reward/std"),
        *("train/grad_norm", "train/clip_fraction", "train/importance_weight_mean", "train/learning_rate"),
        *("train/train_rollout_logprob_abs_diff", "train/skipped_steps"),
    }
    assert metrics["loss/entropy"] == pytest.approx(torch.tensor(float(VOCAB_SIZE)).log().item(), abs=0.3)


def test_a_batch_without_anything_to_train_is_an_error(policy_dir: Path) -> None:
    sample = Sample((1, 2), {"loss_mask": (0, 0)}, {"reward": 1.0}, ())
    with pytest.raises(TrainerError, match="nothing to train"):
        trainer_of(policy_dir).train(batch_of([sample]))


def test_a_loss_that_fails_leaves_the_trainer_as_it_was(policy_dir: Path) -> None:
    trainer = trainer_of(policy_dir, loss_fn=hook(lambda advantages: advantages.sum()))
    before, baseline = parameters_of(trainer), trainer._baseline.state()
    with pytest.raises(PluginError, match="does not depend on policy_logprobs"):
        trainer.train(batch_of(random_samples(3)))
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())
    assert (trainer.step, trainer._baseline.state()) == (0, baseline)
    assert all(parameter.grad is None for parameter in trainer._policy.model.parameters())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such directory"),
        ({}, r"no config\.json"),
        ({"config.json": "{}"}, r"no \*\.safetensors"),
        ({"config.json": "{}", "model.safetensors": "nonsense"}, "transformers cannot load it"),
    ],
)
def test_a_wrong_model_directory_is_refused_in_one_line(tmp_path: Path, content, complaint: str) -> None:
    model_dir = tmp_path / "model"
    if content is not None:
        model_dir.mkdir()
        for name, text in content.items():
            (model_dir / name).write_text(text)
    with pytest.raises(WeightsError, match=complaint) as caught:
        trainer_of(model_dir)
    assert "\n" not in str(caught.value)


def test_a_rank_that_has_not_met_the_others_says_so(policy_dir: Path) -> None:
    with pytest.raises(TrainerError, match="call join_ranks first"):
        trainer_of(policy_dir, rank=0, world_size=2)
