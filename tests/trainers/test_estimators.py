"""Every estimator, correction and reduction in the real trainer: packing and order cannot change what is learned."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import (
    BINARY_RL,
    ROOT,
    batch_of,
    gradients_of,
    logprobs_of,
    parameters_of,
    random_samples,
    relative_difference,
    trainer_of,
)
from slime.errors import ConfigError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook, load_loss
from slime.types import Batch, Sample, SampleGroup
from transformers import AutoModelForCausalLM

IN_THE_REWARD = {"kl_coef": 0.5, "kl_loss_coef": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"advantage_estimator": "grpo"},
    "dr_grpo": {"advantage_estimator": "dr_grpo", "dr_grpo_length": 64},
    "rloo, per token": {"advantage_estimator": "rloo", "calculate_per_token_loss": True},
    "reinforce++": {"advantage_estimator": "reinforce_plus_plus", **IN_THE_REWARD},
    "reinforce++ baseline": {"advantage_estimator": "reinforce_plus_plus_baseline", **IN_THE_REWARD},
    "gspo, sequence mask": {"advantage_estimator": "gspo", "use_opsm": True},
    "cispo": {"advantage_estimator": "cispo", "behaviour_correction": "decoupled"},
    "ppo": {"advantage_estimator": "ppo", "critic": "own", "eps_clip_c": 3.0},
    "ppo, head alone": {"advantage_estimator": "ppo", "critic": "policy"},
    "step wise": {"advantage_estimator": "step_wise"},
    "mis": {"behaviour_correction": "mis", "mis_level": "geometric", "mis_mode": "mask"},
    "mis, veto": {"behaviour_correction": "mis", "mis_veto_threshold": 0.2},
    "gspo, raw rewards": {"advantage_estimator": "gspo", "rewards_normalization": False},
    "icepop": {"behaviour_correction": "icepop", "tis_clip_low": 0.5},
}


def hook(function) -> LossHook:
    return LossHook(NamedCall.match(function, LOSS.names))


def grouped(samples: list[Sample]) -> Batch:
    """Groups of three and of what is left."""
    parts = [samples[i : i + 3] for i in range(0, len(samples), 3)]
    return Batch(tuple(SampleGroup(f"group {i}", tuple(part)) for i, part in enumerate(parts)))


def with_turns(samples: list[Sample]) -> list[Sample]:
    """The samples, each of its own trajectory, in two turns with scores of their own."""
    turned = []
    for i, s in enumerate(samples):
        index = [int(t > len(s.token_ids) // 2) for t in range(len(s.token_ids))]
        scores = [(s.values["reward"], 0.25 * (i % 3))[turn] for turn in index]
        streams = {**s.streams, "turn_index": index, "rewards": scores}
        turned.append(dataclasses.replace(s, streams=streams, trajectory_id=f"session {i}"))
    return turned


@pytest.mark.parametrize("name", SETTINGS)
def test_packing_and_order_do_not_change_the_gradient(policy_dir: Path, name: str) -> None:
    """From the second batch on, when neither policy nor critic is what it was at first."""
    first, second = grouped(with_turns(random_samples(6, seed=5))), grouped(with_turns(random_samples(8)))
    turned = Batch(tuple(SampleGroup(g.group_id, g.samples[::-1]) for g in second.groups[::-1]))

    def gradient(batch: Batch, max_tokens: int) -> dict[str, torch.Tensor]:
        trainer = trainer_of(policy_dir, loss=SETTINGS[name], max_tokens_per_gpu=max_tokens)
        trainer.train(first)
        return gradients_of(trainer, batch)

    whole = gradient(second, 8192)
    assert any(bool(g.any()) for g in whole.values())
    assert relative_difference(gradient(second, 1), whole) < 1e-4
    assert relative_difference(gradient(turned, 60), whole) < 1e-4


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        ({"calculate_per_token_loss": True}, lambda tokens, of_trajectory, trajectories: 1 / tokens),
        (
            {"advantage_estimator": "dr_grpo", "dr_grpo_length": 50},
            lambda tokens, of_trajectory, trajectories: 1 / 50 / trajectories,
        ),
        ({}, lambda tokens, of_trajectory, trajectories: 1 / of_trajectory / trajectories),
    ],
)
@pytest.mark.parametrize("is_summed", [True, False])
def test_reductions_against_a_second_implementation_in_float64(
    policy_dir: Path, loss: dict[str, Any], weight, is_summed: bool
) -> None:
    samples = random_samples(7)
    of_trajectory: dict[str, int] = {}
    for s in samples:
        of_trajectory[s.trajectory_id] = of_trajectory.get(s.trajectory_id, 0) + s.num_trainable_tokens
    model = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float64)
    for s in samples:
        ids = torch.tensor(s.token_ids)
        logits = model(input_ids=ids[None]).logits[0, :-1] / s.values["temperature"]
        logprobs = logits.log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        mask = torch.tensor(s.streams["loss_mask"][1:], dtype=torch.float64)
        each = weight(sum(of_trajectory.values()), of_trajectory[s.trajectory_id], len(of_trajectory))
        (-each * s.values["reward"] * (mask * logprobs).sum()).backward()
    expected = {name: p.grad.float() for name, p in model.named_parameters()}

    def summed(policy_logprobs, rewards, sum_of_sample_mean):
        return sum_of_sample_mean(-policy_logprobs * rewards)

    def mean(policy_logprobs, rewards):
        return (-policy_logprobs * rewards).mean()

    trainer = trainer_of(policy_dir, loss=loss, loss_fn=hook(summed if is_summed else mean), max_tokens_per_gpu=50)
    assert relative_difference(gradients_of(trainer, batch_of(samples)), expected) < 1e-5


def test_metrics_of_training_are_means_whatever_the_reduction(policy_dir: Path) -> None:
    samples = [dataclasses.replace(s, trajectory_id="") for s in random_samples(4)]
    for loss in ({}, {"calculate_per_token_loss": True}, {"advantage_estimator": "dr_grpo", "dr_grpo_length": 7}):
        trainer = trainer_of(policy_dir, loss_fn=load_loss(str(BINARY_RL)), loss={**loss, "tis_clip": 1e9})
        metrics = trainer.train(grouped(samples)).metrics
        by_hand: list[torch.Tensor] = []
        for s in samples:
            now = logprobs_of(policy_dir, s.token_ids, s.values["temperature"])
            mask = torch.tensor(s.streams["loss_mask"][1:], dtype=torch.bool)
            by_hand.append((now - torch.tensor(s.streams["rollout_logprobs"][1:]))[mask].exp())
        of_samples = torch.stack([ratios.mean() for ratios in by_hand]).mean()
        expected = torch.cat(by_hand).mean() if loss else of_samples
        assert metrics["train/importance_weight_mean"] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_proximal_policy_is_that_of_the_start_of_the_batch(policy_dir: Path, steps: int) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def compute_loss(policy_logprobs, proximal_logprobs, rollout_logprobs, sum_of_sample_mean):
        seen.append((policy_logprobs.detach(), proximal_logprobs, rollout_logprobs))
        return sum_of_sample_mean(-policy_logprobs)

    samples = random_samples(6)
    trainer = trainer_of(
        policy_dir,
        loss={"behaviour_correction": "decoupled"},
        loss_fn=hook(compute_loss),
        num_steps_per_rollout=steps,
    )
    trainer.train(batch_of(samples))
    assert len(seen) == steps
    torch.testing.assert_close(seen[0][0], seen[0][1], atol=1e-5, rtol=0)
    if steps > 1:
        assert float((seen[-1][0] - seen[-1][1]).abs().max()) > 1e-2, "the policy has moved, its anchor has not"
    known: dict[float, float] = {}  # made-up log-probs of sampling time tell the tokens apart
    for s in samples:
        now = logprobs_of(policy_dir, s.token_ids, s.values["temperature"])
        rollout = torch.tensor(s.streams["rollout_logprobs"][1:])
        known |= dict(zip(rollout.tolist(), now.tolist(), strict=True))
    for _, proximal, rollout in seen:
        expected = [known[value] for value in rollout.tolist()]
        assert proximal.tolist() == [pytest.approx(value, abs=1e-5) for value in expected]


def test_the_kl_in_the_reward_is_the_log_ratio_of_each_token(policy_dir: Path, tmp_path: Path) -> None:
    """Less `kl_coef` · (ℓ − ℓ_ref) at the published kl_loss_type, which speaks of the loss; 0 in the first update."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def compute_loss(policy_logprobs, rewards, advantages, sum_of_sample_mean):
        seen.append((policy_logprobs.detach(), rewards - advantages))
        return sum_of_sample_mean(-policy_logprobs * advantages)

    trainer = trainer_of(policy_dir, loss={"baseline": "none", **IN_THE_REWARD}, loss_fn=hook(compute_loss))
    (sample,) = random_samples(1)
    for _ in range(2):
        trainer.train(batch_of([sample]))
    mask = torch.tensor(sample.streams["loss_mask"][1:], dtype=torch.bool)
    reference = logprobs_of(policy_dir, sample.token_ids, sample.values["temperature"])[mask]
    assert not seen[0][1].any()
    torch.testing.assert_close(seen[1][1], 0.5 * (seen[1][0] - reference), atol=1e-5, rtol=0)
    assert float(seen[1][1].abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["k2", "low_var_kl", "full"])
def test_another_estimate_of_the_kl_in_the_reward_is_refused(policy_dir: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"--kl-loss-type {kind} is of the KL in the loss"):
        trainer_of(policy_dir, loss={"kl_loss_type": kind, **IN_THE_REWARD})


@pytest.mark.parametrize("file", ["openclaw-opd/custom_loss.py", "openclaw-opd/custom_loss_topk.py"])
def test_a_loss_that_reads_no_advantages_refuses_a_kl_that_is_part_of_them(policy_dir: Path, file: str) -> None:
    with pytest.raises(ConfigError, match=r"compute_loss reads none: use --kl-loss-coef"):
        trainer_of(policy_dir, loss=IN_THE_REWARD, loss_fn=load_loss(str(ROOT / file)))
    combine = load_loss(str(ROOT / "openclaw-combine/custom_loss.py"))
    with pytest.raises(ConfigError, match="--w-rl 0 leaves those out"):
        trainer_of(policy_dir, loss={**IN_THE_REWARD, "w_rl": 0.0}, loss_fn=combine)


def test_turns_that_have_a_hint_and_no_score_pay_the_kl_in_the_reward(policy_dir: Path) -> None:
    """Combine's gradient on such a batch: a policy that has moved is pulled back by kl_coef alone."""
    taught = []
    for s in random_samples(4):
        length = len(s.token_ids)
        known = {"teacher_logprobs": s.streams["rollout_logprobs"], "has_teacher": (1,) * length}
        at_one = {**s.values, "temperature": 1.0}  # as teachers score
        taught.append(
            dataclasses.replace(s, values=at_one, streams={**s.streams, **known, "has_reward": (0,) * length})
        )
    found = {}
    for kl_coef in (0.0, 1.0, 2.0):
        charged = {"kl_coef": kl_coef, "kl_loss_coef": 0.0, "eps_clip": 0.99, "eps_clip_high": 99.0}
        loss_fn = load_loss(str(ROOT / "openclaw-combine/custom_loss.py"))
        trainer = trainer_of(policy_dir, loss=charged, loss_fn=loss_fn, settings={"w_opd": 1.0, "w_rl": 1.0})
        with torch.no_grad():
            for index, p in enumerate(trainer._policy.model.parameters()):
                p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(index))
        found[kl_coef] = gradients_of(trainer, batch_of(taught))
    assert not any(bool(g.any()) for g in found[0.0].values()), "what the teacher says is what was sampled"
    assert relative_difference(found[2.0], {n: 2 * g for n, g in found[1.0].items()}) < 1e-5
    assert any(bool(g.any()) for g in found[1.0].values())


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "gspo", "cispo"])
def test_a_group_of_equal_rewards_changes_nothing(policy_dir: Path, estimator: str) -> None:
    samples = [dataclasses.replace(s, values={**s.values, "reward": 0.3}) for s in random_samples(5)]
    trainer = trainer_of(policy_dir, loss={"advantage_estimator": estimator, "kl_loss_coef": 0.0})
    before = parameters_of(trainer)
    assert trainer.train(grouped(samples)).skipped == "nothing to learn: the gradient is zero"
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())


def test_steps_that_are_dropped_do_not_train(policy_dir: Path) -> None:
    """Two attempts whose first steps are worth the same: only the second steps are trained, and averaged over."""
    counts: list[int] = []

    def compute_loss(policy_logprobs, advantages, turn_index, sum_of_sample_mean):
        counts.append(len(policy_logprobs))
        assert set(turn_index.tolist()) == {1}
        return sum_of_sample_mean(-policy_logprobs * advantages)

    def attempt(name: str, second: float) -> Sample:
        streams = {
            "loss_mask": [0, 1, 1, 1, 1],
            "rewards": [0.0, 1.0, 1.0, second, second],
            "turn_index": [-1, 0, 0, 1, 1],
            "rollout_logprobs": [0.0, -4.0, -4.0, -4.0, -4.0],
        }
        return Sample((1, 2, 3, 4, 5), streams, {"temperature": 1.0}, (), trajectory_id=name, source="ada")

    trainer = trainer_of(policy_dir, loss={"advantage_estimator": "step_wise"}, loss_fn=hook(compute_loss))
    report = trainer.train(Batch((SampleGroup("task", (attempt("x", 1.0), attempt("y", 0.0))),)))
    assert (counts, report.metrics["train/tokens"]) == ([4], 4.0)


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        ({"kl_coef": 0.1, "kl_loss_coef": 0.2}, "the same KL twice"),
        ({"eps_clip_c": 0.5}, "above 1, or 0"),
        ({"tis_clip_low": 3.0}, "--tis-clip-low 3 is above --tis-clip 2"),
        ({"calculate_per_token_loss": True, "advantage_estimator": "dr_grpo"}, "choose one"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_line(policy_dir: Path, loss, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        trainer_of(policy_dir, loss=loss)
    assert "\n" not in str(caught.value)


def test_a_run_without_correction_is_warned_about(policy_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="slime.trainers.torch.trainer"):
        trainer_of(policy_dir)
        assert not caplog.records
        trainer_of(policy_dir, loss={"behaviour_correction": "none"})
    assert "as though they were fresh" in caplog.text


def test_bounds_of_tokens_on_the_ratio_of_replies_are_warned_about(
    policy_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="slime.trainers.torch.trainer"):
        trainer_of(policy_dir, loss={"advantage_estimator": "gspo", "eps_clip": 3e-4, "eps_clip_high": 4e-4})
        assert not caplog.records
        trainer_of(policy_dir, loss={"advantage_estimator": "gspo"})
    assert "its paper has --eps-clip 3e-4 --eps-clip-high 4e-4" in caplog.text
