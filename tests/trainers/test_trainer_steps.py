"""What an update does around the gradient: warm-up, splitting, skipping, refusing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from learners import VOCAB_SIZE, batch_of, parameters_of, random_samples, trainer_of
from slime.errors import PluginError, TrainerError, WeightsError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook
from slime.protocols import Trainer
from slime.types import Batch, Sample, SampleGroup


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
    baseline = trainer.baseline.state()
    trainer._scorer.loss_fn = hook(loss)
    report = trainer.train(batch_of(random_samples(3, seed=1)))
    assert (report.step, report.metrics["train/skipped_steps"]) == (1, 1.0)
    assert reason in report.skipped
    assert all(torch.equal(value, parameters[name]) for name, value in parameters_of(trainer).items())
    assert all(torch.equal(value, moments[name]) for name, value in trainer._optimizer.state().items())
    assert trainer.baseline.state() == baseline
    assert trainer.consumed.keys() == {1}


def test_scores_that_teach_nothing_are_what_later_ones_are_compared_with(policy_dir: Path) -> None:
    """A first batch of equal scores: its turns are skipped, and the next batch's are measured against it."""
    equal = [dataclasses.replace(s, values={**s.values, "reward": 1.0}, source="ada") for s in random_samples(4)]
    lower = [dataclasses.replace(s, values={**s.values, "reward": -1.0}, source="ada") for s in random_samples(4, 1)]
    trainer = trainer_of(policy_dir)
    assert trainer.train(batch_of(equal)).skipped == "nothing to learn: the gradient is zero"
    assert trainer.baseline.state() == {"ada": [1.0, pytest.approx(1 + 0.9 + 0.81 + 0.729)]}
    before = parameters_of(trainer)
    assert not trainer.train(batch_of(lower)).skipped, "by itself it would have taught nothing either"
    assert any(not torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())


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


def changed(stream: str, value: object) -> Callable[[Sample], Sample]:
    """A sample with another value at its last trainable token."""

    def change(sample: Sample) -> Sample:
        values = list(sample.streams.get(stream, (0.0,) * len(sample.token_ids)))
        values[max(i for i, flag in enumerate(sample.streams["loss_mask"]) if flag)] = value
        return dataclasses.replace(sample, streams={**sample.streams, stream: tuple(values)})

    return change


def valued(name: str, value: float) -> Callable[[Sample], Sample]:
    return lambda sample: dataclasses.replace(sample, values={**sample.values, name: value})


def masked(sample: Sample) -> Sample:
    return dataclasses.replace(sample, streams={**sample.streams, "loss_mask": (0,) * len(sample.token_ids)})


BAD: dict[str, tuple[Callable[[Sample], Sample], str]] = {
    "log-prob nan": (changed("rollout_logprobs", math.nan), "rollout_logprobs: nan is not finite"),
    "log-prob inf": (changed("rollout_logprobs", math.inf), "rollout_logprobs: inf is not finite"),
    "log-prob -inf": (changed("rollout_logprobs", -math.inf), "rollout_logprobs: -inf is not finite"),
    "log-prob above 0": (changed("rollout_logprobs", 3.0), "rollout_logprobs: 3 is no log-prob of a sampled token"),
    "log-prob far below": (changed("rollout_logprobs", -1e4), "rollout_logprobs: -10000 is no log-prob"),
    "log-prob missing": (changed("rollout_logprobs", None), "rollout_logprobs: NoneType is not a number"),
    "teacher nan": (changed("teacher_logprobs", math.nan), "teacher_logprobs: nan is not finite"),
    "advantage inf": (changed("advantages", math.inf), "advantages: inf is not finite"),
    "reward of a turn": (changed("rewards", -1e30), "rewards: -1e+30 is beyond ±1e+06"),
    "reward nan": (valued("reward", math.nan), "reward: nan is not finite"),
    "reward huge": (valued("reward", 1e300), "reward: 1e+300 is beyond ±1e+06"),
    "temperature 0": (valued("temperature", 0.0), "temperature: 0 is outside 0.001 … 1000"),
    "no token trains": (masked, "none of its tokens trains"),
    "unknown id": (lambda s: dataclasses.replace(s, token_ids=(VOCAB_SIZE, *s.token_ids[1:])), "token_ids: not all"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_sample_costs_itself_and_nothing_else(policy_dir: Path, kind: str) -> None:
    """The others are trained as though it had never been, baselines, groups and several steps included."""
    spoil, reason = BAD[kind]
    good = [dataclasses.replace(s, source="ada", trajectory_id="") for s in random_samples(6)]
    bad = dataclasses.replace(spoil(good[2]), turn_ids=("bad",))
    loss = {"advantage_estimator": "grpo", "behaviour_correction": "decoupled"}
    alone, among = (trainer_of(policy_dir, loss=loss, num_steps_per_rollout=2) for _ in range(2))
    without = alone.train(Batch((SampleGroup("a", tuple(good[:3])), SampleGroup("b", tuple(good[3:])))))
    report = among.train(
        Batch((SampleGroup("a", (bad, *good[:3])), SampleGroup("c", (bad,)), SampleGroup("b", tuple(good[3:]))))
    )
    assert list(report.left_out) == ["bad"]
    assert report.left_out["bad"].startswith(reason)
    assert report.metrics == {**without.metrics, "train/left_out_samples": 2.0}
    assert among.consumed == alone.consumed
    after = parameters_of(among)
    assert all(torch.equal(value, after[name]) for name, value in parameters_of(alone).items())


def test_a_batch_without_anything_to_train_is_skipped_with_a_reason(policy_dir: Path) -> None:
    trainer = trainer_of(policy_dir)
    sample = Sample((1, 2), {"loss_mask": (0, 0)}, {"reward": 1.0}, ("t1",))
    report = trainer.train(batch_of([sample]))
    assert report.skipped == "nothing to train: none of its tokens trains"
    assert report.left_out == {"t1": "none of its tokens trains"}
    assert trainer.train(Batch(())).skipped == "nothing to train: the batch is empty"
    assert (trainer.step, trainer.consumed) == (0, {})


def test_a_loss_that_fails_leaves_the_trainer_as_it_was(policy_dir: Path) -> None:
    trainer = trainer_of(policy_dir, loss_fn=hook(lambda advantages: advantages.sum()))
    before, baseline = parameters_of(trainer), trainer.baseline.state()
    with pytest.raises(PluginError, match="does not depend on policy_logprobs"):
        trainer.train(batch_of(random_samples(3)))
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())
    assert (trainer.step, trainer.baseline.state()) == (0, baseline)
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
