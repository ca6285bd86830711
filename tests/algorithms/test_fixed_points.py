"""Where training ends, by exact expectation: a table of twelve ids, every one of them "sampled" with its probability.

    logits ─ Prescorer ─▶ with_advantages ─▶ policy_objective ─ Σ π(id) · loss(id) ─▶ gradient ─▶ logits

What maximises E[r] − β·KL(π ‖ π_ref) is π ∝ π_ref · exp(r/β), so the KL that a run must end at is known.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from slime.algorithms.advantages import MovingBaseline
from slime.algorithms.losses import exact_kl
from slime.algorithms.objective import policy_objective
from slime.config.checks.contradictions import check_loss_settings
from slime.config.sections import LossConfig, TrainerConfig
from slime.data.estimates import with_advantages
from slime.data.rows import Row, flatten
from slime.plugins.losses import load_loss
from slime.plugins.settings import plugin_settings
from slime.trainers.loss_values import ScoredBatch
from slime.trainers.prescoring import Prescorer
from slime.trainers.ranks import Ranks
from slime.types import Batch, Sample, SampleGroup
from torch import Tensor

VOCAB_SIZE = 12
REFERENCE = 1.5 * torch.randn(VOCAB_SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
REWARDS = torch.zeros(VOCAB_SIZE, dtype=torch.float64).index_fill(0, torch.tensor(3), 1.0)
BINARY = load_loss("openclaw_rl.custom_loss")


def kl_to_reference(logits: Tensor) -> float:
    return float(exact_kl(logits.detach()[None], REFERENCE[None]))


def optimum(beta: float) -> Tensor:
    return REFERENCE + REWARDS / beta


def advantages_of(logits: Tensor, rewards: Tensor, config: LossConfig) -> Tensor:
    """What the trainer would give each id as the one token of a reply: its reward, less the KL if that is in it."""
    policy, reference = logits.detach().log_softmax(-1), REFERENCE.log_softmax(-1)

    def score(micro: list[Row], sizes: list[int]) -> ScoredBatch:
        ids = torch.cat([row.targets for row in micro])
        found = {"policy_logprobs": policy[ids], "reference_logprobs": reference[ids]}
        return cast(ScoredBatch, SimpleNamespace(flat=flatten(micro), **found))

    samples = [
        Sample(
            (0, token_id),
            {"loss_mask": (0, 1), "rollout_logprobs": (0.0, float(policy[token_id]))},
            {"reward": float(rewards[token_id]), "temperature": 1.0},
            (),
        )
        for token_id in range(VOCAB_SIZE)
    ]
    batch = Batch(tuple(SampleGroup(f"reply {i}", (sample,)) for i, sample in enumerate(samples)))
    prescore = Prescorer(TrainerConfig(), config, BINARY, cast(Any, score), None, Ranks(0, 1))
    estimated, _ = with_advantages(prescore(batch), config, MovingBaseline(config.baseline_decay))
    return torch.tensor([sample.streams["advantages"][1] for sample in estimated], dtype=torch.float64)


def trained(config: LossConfig, *, start: Tensor = REFERENCE, rewards: Tensor = REWARDS, num_steps: int = 60) -> Tensor:
    """The logits after that many steps along the exact natural gradient, each half of the way to the optimum."""
    check_loss_settings(config)
    logits = start.clone().requires_grad_()
    advantages = advantages_of(logits, rewards, config)
    for _ in range(num_steps):
        policy = logits.log_softmax(-1)
        probabilities = policy.detach().exp()
        if config.kl_coef:
            advantages = advantages_of(logits, rewards, config)
        loss, _ = policy_objective(
            policy,
            policy.detach(),
            REFERENCE.log_softmax(-1),
            advantages,
            mean=lambda each, weights=probabilities: (weights * each).sum(),
            config=plugin_settings(config),
            compute_full_kl=lambda now=logits: exact_kl(now[None], REFERENCE[None]).expand(VOCAB_SIZE),
            compute_entropy=lambda: pytest.fail("not asked for"),
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        step_size = 0.5 / (config.kl_coef or config.kl_loss_coef)
        logits = (logits - step_size * gradient / probabilities).detach().requires_grad_()
    return logits.detach()


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_a_kl_in_the_reward_ends_at_the_optimum(beta: float) -> None:
    """At the published `kl_loss_type`, which says nothing of the reward."""
    ended = trained(LossConfig(baseline="none", kl_coef=beta, kl_loss_coef=0.0))
    assert kl_to_reference(ended) == pytest.approx(kl_to_reference(optimum(beta)), abs=1e-6)
    torch.testing.assert_close(ended.softmax(-1), optimum(beta).softmax(-1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("is_unbiased", [True, False])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl", "full"])
def test_a_kl_in_the_loss_ends_at_the_optimum(kind: Any, is_unbiased: bool) -> None:
    config = LossConfig(baseline="none", kl_loss_coef=0.5, kl_loss_type=kind, use_unbiased_kl=is_unbiased)
    ended = trained(config)
    assert kl_to_reference(ended) == pytest.approx(kl_to_reference(optimum(0.5)), abs=1e-9)
    torch.testing.assert_close(ended.softmax(-1), optimum(0.5).softmax(-1), atol=1e-9, rtol=0)


def test_the_published_kl_in_the_loss_ends_at_the_optimum() -> None:
    """0.1 · k3: the rewarded id takes nearly everything, and not quite."""
    ended = trained(LossConfig(baseline="none"))
    assert kl_to_reference(ended) == pytest.approx(kl_to_reference(optimum(0.1)), abs=1e-9)


@pytest.mark.parametrize("is_unbiased", [True, False])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl", "full"])
def test_a_policy_that_lost_ids_gets_them_back(kind: Any, is_unbiased: bool) -> None:
    """Six ids four nats below the reference, where a clamp acts, and nothing but the KL to learn from."""
    lost = REFERENCE.clone()
    lost[:6] -= 4.0
    config = LossConfig(baseline="none", kl_loss_coef=1.0, kl_loss_type=kind, use_unbiased_kl=is_unbiased)
    kls = [kl_to_reference(lost)]
    for _ in range(6):
        lost = trained(config, start=lost, rewards=torch.zeros_like(REWARDS), num_steps=1)
        kls.append(kl_to_reference(lost))
    assert kls == sorted(kls, reverse=True), "nearer with every step"
    assert kls[-1] < 1e-2 * kls[0]
