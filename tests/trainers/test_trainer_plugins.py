"""Losses in every published style, in the real trainer: they run unchanged, and packing cannot change them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from learners import ROOT, batch_of, gradients_of, random_samples, relative_difference, trainer_of
from slime.errors import PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook, load_loss

PUBLISHED = ROOT / "tests" / "plugins" / "published"


def hook(function) -> LossHook:
    return LossHook(NamedCall.match(function, LOSS.names))


def with_teacher(samples):
    """The samples with log-probs of a teacher, and turns to estimate advantages over."""
    return [
        dataclasses.replace(
            s,
            streams={
                **s.streams,
                "teacher_logprobs": tuple(lp - 0.25 for lp in s.streams["rollout_logprobs"]),
                "rewards": tuple(s.values["reward"] for _ in s.token_ids),
                "turn_index": tuple(int(i > len(s.token_ids) // 2) for i, _ in enumerate(s.token_ids)),
            },
        )
        for s in samples
    ]


@pytest.mark.parametrize("name", ["custom_loss.py", "custom_opd_loss.py", "hybrid_loss.py"])
def test_a_published_loss_runs_unchanged_and_packing_cannot_change_it(policy_dir: Path, name: str) -> None:
    batch = batch_of(with_teacher(random_samples(6)))
    loss_fn = load_loss(str(PUBLISHED / name))
    whole, packed = (
        gradients_of(trainer_of(policy_dir, loss_fn=loss_fn, max_tokens_per_gpu=tokens), batch) for tokens in (8192, 1)
    )
    assert relative_difference(packed, whole) < 1e-5
    assert any(bool(gradient.any()) for gradient in whole.values())


@pytest.mark.parametrize("name", ["custom_opd_loss.py", "hybrid_loss.py"])
def test_a_published_loss_learns_nothing_from_a_teacher_that_did_not_speak(policy_dir: Path, name: str) -> None:
    untaught = [dataclasses.replace(s, values={**s.values, "reward": 0.0}) for s in random_samples(6)]
    trainer = trainer_of(policy_dir, loss={"kl_loss_coef": 0.0}, loss_fn=load_loss(str(PUBLISHED / name)))
    assert not any(bool(gradient.any()) for gradient in gradients_of(trainer, batch_of(untaught)).values())
    report = trainer.train(batch_of(untaught))
    assert report.skipped == "nothing to learn: the gradient is zero"


def test_a_published_loss_learns_the_same_whether_or_not_untaught_samples_are_beside(policy_dir: Path) -> None:
    samples = [dataclasses.replace(s, trajectory_id="") for s in random_samples(6)]
    taught, untaught = with_teacher(samples[:3]), samples[3:]
    loss_fn = load_loss(str(PUBLISHED / "custom_opd_loss.py"))
    alone, among = (
        gradients_of(trainer_of(policy_dir, loss_fn=loss_fn), batch_of(batch)) for batch in (taught, taught + untaught)
    )
    halved = {name: gradient / 2 for name, gradient in alone.items()}  # a mean over twice as many samples
    assert relative_difference(among, halved) < 1e-5


@pytest.mark.parametrize("correction", ["tis", "decoupled"])
def test_the_proximal_policy_is_the_one_at_the_start_of_the_update(policy_dir: Path, correction: str) -> None:
    seen: list[float] = []

    def compute_loss(policy_logprobs, proximal_logprobs, sum_of_sample_mean):
        seen.append(float((policy_logprobs - proximal_logprobs).detach().abs().max()))
        return sum_of_sample_mean(-torch.exp(policy_logprobs - proximal_logprobs))

    trainer = trainer_of(
        policy_dir, loss={"behaviour_correction": correction}, loss_fn=hook(compute_loss), num_steps_per_rollout=3
    )
    trainer.train(batch_of(random_samples(9)))
    assert seen[0] < 1e-5
    assert all(difference > 0.01 for difference in seen[1:])


def test_a_mean_of_its_own_is_the_mean_over_tokens_then_trajectories(policy_dir: Path) -> None:
    """A loss that takes `.mean()` has the gradient of the same loss through `sum_of_sample_mean`."""
    batch = batch_of(random_samples(6))
    by_mean = trainer_of(policy_dir, loss_fn=hook(lambda policy_logprobs, rewards: -(policy_logprobs * rewards).mean()))
    by_name = trainer_of(
        policy_dir,
        loss_fn=hook(
            lambda policy_logprobs, rewards, sum_of_sample_mean: -sum_of_sample_mean(policy_logprobs * rewards)
        ),
    )
    assert relative_difference(gradients_of(by_mean, batch), gradients_of(by_name, batch)) < 1e-5


@pytest.mark.parametrize("max_tokens", [8192, 50])
def test_slimes_call_style_gives_the_gradient_of_ours(policy_dir: Path, max_tokens: int) -> None:
    def ours(policy_logprobs, advantages, sum_of_sample_mean):
        return sum_of_sample_mean(-torch.exp(policy_logprobs - policy_logprobs.detach()) * advantages)

    batch = batch_of(random_samples(6))
    slimes = gradients_of(
        trainer_of(
            policy_dir, loss_fn=load_loss(f"{PUBLISHED}/slime_loss.py:policy_gradient"), max_tokens_per_gpu=max_tokens
        ),
        batch,
    )
    assert relative_difference(slimes, gradients_of(trainer_of(policy_dir, loss_fn=hook(ours)), batch)) < 1e-5


def test_metrics_of_a_plug_in_are_reduced_like_its_loss(policy_dir: Path) -> None:
    def compute_loss(policy_logprobs, rewards):
        return -(policy_logprobs * rewards).mean(), {"reward_seen": rewards.mean(), "train/mine": 2.0}

    samples = [dataclasses.replace(s, trajectory_id="") for s in random_samples(6)]
    for max_tokens in (8192, 30):
        trainer = trainer_of(policy_dir, loss_fn=hook(compute_loss), max_tokens_per_gpu=max_tokens)
        metrics = trainer.train(batch_of(samples)).metrics
        assert metrics["loss/reward_seen"] == pytest.approx(sum(s.values["reward"] for s in samples) / 6, rel=1e-5)
        assert metrics["train/mine"] == pytest.approx(2.0)


def test_without_a_reference_model_the_reference_is_the_behaviour(policy_dir: Path) -> None:
    seen = []

    def compute_loss(policy_logits, reference_logits, rollout_logprobs):
        seen.append(torch.equal(reference_logits, rollout_logprobs))
        return policy_logits.mean()

    trainer_of(policy_dir, loss={"kl_loss_coef": 0.0}, loss_fn=hook(compute_loss)).train(batch_of(random_samples(2)))
    trainer_of(policy_dir, loss_fn=hook(compute_loss)).train(batch_of(random_samples(1)))
    assert seen == [True, True, False]


def test_values_of_the_wrong_length_are_refused(policy_dir: Path) -> None:
    def compute_loss(policy_logprobs, sum_of_sample_mean):
        return sum_of_sample_mean(policy_logprobs[:3])

    with pytest.raises(PluginError, match=r"sum_of_sample_mean got 3 values; the micro-batch has \d+ trainable"):
        trainer_of(policy_dir, loss_fn=hook(compute_loss)).train(batch_of(random_samples(4)))
