"""The critic learns what sessions come to, leaves the policy alone, and is the same after a restart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from learners import batch_of, parameters_of, random_samples, trainer_of
from slime.config.checks.contradictions import check_loss_settings
from slime.config.sections import LoraConfig, LossConfig
from slime.data.rows import flatten, rows
from slime.errors import ConfigError
from slime.types import Batch
from slime.weights.directories import read_manifest
from test_estimators import with_turns

PPO = {"advantage_estimator": "ppo", "kl_loss_coef": 0.0}


def sessions(seed: int = 0) -> Batch:
    return batch_of(with_turns(random_samples(6, seed=seed)))


def constant(reward: float) -> Batch:
    """Sessions of one turn that are all worth the same."""
    samples = [dataclasses.replace(s, trajectory_id=f"session {i}") for i, s in enumerate(random_samples(6))]
    return batch_of([dataclasses.replace(s, values={**s.values, "reward": reward}) for s in samples])


@pytest.mark.parametrize("critic", ["own", "policy"])
def test_it_learns_what_to_expect_and_then_nothing_is_better_than_expected(policy_dir: Path, critic: str) -> None:
    trainer = trainer_of(policy_dir, loss={**PPO, "critic": critic, "critic_lr": 0.03, "value_clip": 0.0}, lr=1e-4)
    losses = [trainer.train(constant(0.7)).metrics for _ in range(25)]
    assert losses[0]["loss/value"] == pytest.approx(0.7**2 / 2, rel=1e-4), "it starts at zero"
    assert losses[-1]["loss/value"] < 0.05 * losses[0]["loss/value"]
    assert abs(losses[-1]["loss/policy"]) < 0.3 * abs(losses[0]["loss/policy"])


def test_its_first_advantages_are_those_of_no_critic(policy_dir: Path) -> None:
    seen: dict[str, float] = {}
    for name, loss in (("critic", PPO), ("none", {**PPO, "advantage_estimator": "reinforce", "baseline": "none"})):
        seen[name] = trainer_of(policy_dir, loss=loss).train(constant(0.7)).metrics["loss/policy"]
    assert seen["critic"] == pytest.approx(seen["none"], rel=1e-6)


@pytest.mark.parametrize("critic", ["own", "policy"])
def test_the_policy_gets_no_gradient_from_it(policy_dir: Path, critic: str) -> None:
    """Two critics that learn at different rates: after one update the policies are the same."""
    trainers = [trainer_of(policy_dir, loss={**PPO, "critic": critic, "critic_lr": rate}) for rate in (1e-3, 0.1)]
    for trainer in trainers:
        trainer.train(sessions())
    first, second = (parameters_of(trainer) for trainer in trainers)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_value_moves_no_farther_than_its_clip_pushes(policy_dir: Path) -> None:
    trainer = trainer_of(
        policy_dir, loss={**PPO, "critic": "policy", "critic_lr": 0.01, "value_clip": 0.05}, num_steps_per_rollout=6
    )
    samples = constant(1.0)
    trainer.train(samples)
    flat = flatten(rows(samples.samples))
    with torch.no_grad():
        values = trainer._critic.values(flat, trainer._policy.hidden_states(flat))
    assert 0.0 < float(values.mean()) < 0.5, "the returns are 1, and each step stops pushing at 0.05"


@pytest.mark.parametrize("critic", ["own", "policy"])
def test_a_resumed_critic_goes_on_bit_for_bit(policy_dir: Path, tmp_path: Path, critic: str) -> None:
    loss = {**PPO, "critic": critic}
    through, stopped, resumed = (trainer_of(policy_dir, loss=loss) for _ in range(3))
    for trainer in (through, stopped):
        trainer.train(sessions(1))
        trainer.train(sessions(2))
    resumed.load(stopped.save(tmp_path))
    reports = [trainer.train(sessions(3)).metrics for trainer in (through, resumed)]
    assert reports[0] == reports[1]
    ours, theirs = (trainer._critic.state() for trainer in (through, resumed))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert all(torch.equal(v, parameters_of(resumed)[name]) for name, v in parameters_of(through).items())


@pytest.mark.parametrize("critic", ["own", "policy"])
def test_beside_an_adapter_only_its_head_and_an_adapter_are_trained(policy_dir: Path, critic: str) -> None:
    trainer = trainer_of(policy_dir, loss={**PPO, "critic": critic}, lora=LoraConfig(use_lora=True))
    first = trainer.train(sessions()).metrics["loss/value"]
    for seed in range(3):
        trainer.train(sessions(seed))
    of_backbone = [name for name in trainer._critic._parameters if name.startswith("backbone")]
    assert all("lora" in name for name in of_backbone)
    assert bool(of_backbone) == (critic == "own")
    assert trainer.train(sessions()).metrics["loss/value"] < first


def test_a_checkpoint_without_a_critic_can_get_one(policy_dir: Path, tmp_path: Path) -> None:
    before = trainer_of(policy_dir)
    before.train(sessions())
    trainer = trainer_of(policy_dir, loss=PPO)
    assert trainer.load(before.save(tmp_path)) == 1
    assert trainer.train(sessions(1)).step == 2


def test_while_the_critic_is_trained_alone_the_policy_keeps_its_bytes(policy_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_of(
        policy_dir, loss={**PPO, "num_critic_only_steps": 2}, num_steps_per_rollout=2, lr_warmup_steps=4
    )
    before = parameters_of(trainer)
    published = []
    for seed in range(3):
        report = trainer.train(sessions(seed))
        assert (report.step, report.skipped) == (seed + 1, "")
        published.append(read_manifest(trainer.publish(tmp_path / str(seed))))
        is_same = all(torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())
        assert is_same == (seed < 2)
        assert report.metrics["train/critic_grad_norm"] > 0
        assert (report.metrics["train/grad_norm"] > 0) == (seed == 2)
    assert [manifest.version for manifest in published] == [1, 2, 3]
    first, second, third = ((tmp_path / str(i) / "model.safetensors").read_bytes() for i in range(3))
    assert first == second != third
    assert trainer._optimizer.num_steps == 2, "warm-up begins with the policy"
    assert trainer._critic._optimizer.num_steps == 6
    assert set(trainer.consumed) == {1, 2, 3}, "turns are consumed all the same"


@pytest.mark.parametrize("critic", ["own", "policy"])
def test_the_critic_learns_alone_what_it_would_have_learned_beside_a_still_policy(
    policy_dir: Path, critic: str
) -> None:
    loss = {**PPO, "critic": critic, "critic_lr": 1e-2}
    alone = trainer_of(policy_dir, loss={**loss, "num_critic_only_steps": 1})
    beside = trainer_of(policy_dir, loss=loss)
    batch = sessions()
    one, other = (trainer.train(batch).metrics for trainer in (alone, beside))
    ours, theirs = (trainer._critic.state() for trainer in (alone, beside))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    assert one["loss/total"] == other["loss/total"], "what the policy's loss would have been"


def test_a_run_that_stops_while_the_critic_is_trained_alone_goes_on_bit_for_bit(
    policy_dir: Path, tmp_path: Path
) -> None:
    loss = {**PPO, "num_critic_only_steps": 2}
    through, stopped, resumed = (trainer_of(policy_dir, loss=loss) for _ in range(3))
    for trainer in (through, stopped):
        trainer.train(sessions(1))
    assert resumed.load(stopped.save(tmp_path)) == 1
    for seed in (2, 3):
        assert through.train(sessions(seed)).metrics == resumed.train(sessions(seed)).metrics
    assert all(torch.equal(v, parameters_of(resumed)[name]) for name, v in parameters_of(through).items())


def test_a_batch_that_teaches_the_critic_nothing_is_skipped(policy_dir: Path) -> None:
    """A critic that starts at zero expects rewards of zero."""
    trainer = trainer_of(policy_dir, loss={**PPO, "num_critic_only_steps": 1})
    report = trainer.train(constant(0.0))
    assert (report.step, report.skipped) == (0, "nothing to learn: the gradient is zero")


def test_there_must_be_a_critic_to_train_alone() -> None:
    with pytest.raises(ConfigError, match="--num-critic-only-steps needs --advantage-estimator ppo"):
        check_loss_settings(LossConfig(num_critic_only_steps=1))
