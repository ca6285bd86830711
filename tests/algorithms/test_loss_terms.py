"""Losses against numbers worked out by hand, a second implementation in float64, and exact expectations."""

from __future__ import annotations

import math

import pytest
import torch
from slime.algorithms.losses import clipped_surrogate, entropy, exact_kl, importance_ratio, reference_kl
from slime.algorithms.objective import policy_objective
from slime.config.sections import LossConfig
from slime.plugins.settings import plugin_settings
from torch import Tensor

POLICY = (-1.0, -2.0, -0.5, -3.0, -0.1)
ROLLOUT = (-1.2, -1.5, -0.5, -2.0, -0.3)
REFERENCE = (-1.5, -1.0, -0.5, -3.5, -0.2)
ADVANTAGES = (1.0, -1.0, 2.0, -0.5, 1.0)
RATIOS = (math.exp(0.2), math.exp(-0.5), 1.0, math.exp(-1.0), math.exp(0.2))


def column(values: tuple[float, ...], *, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_ratio_of_five_tokens() -> None:
    policy = column(POLICY, grad=True)
    ratio = importance_ratio(policy, column(ROLLOUT))
    torch.testing.assert_close(ratio, column(RATIOS))
    ratio.sum().backward()
    torch.testing.assert_close(policy.grad, column(RATIOS))  # dρ/dℓ = ρ


def test_a_truncated_ratio_keeps_the_gradient_of_its_weight() -> None:
    policy = column((-1.0, -1.0, -1.0), grad=True)
    ratio = importance_ratio(policy, column((-4.0, -1.5, 0.0)), low=0.5, high=2.0)
    torch.testing.assert_close(ratio, column((2.0, math.exp(0.5), 0.5)))
    ratio.sum().backward()
    torch.testing.assert_close(policy.grad, ratio.detach())


def test_clipped_surrogate_of_five_tokens_by_hand() -> None:
    policy = column(POLICY, grad=True)
    loss, is_clipped = clipped_surrogate(importance_ratio(policy, column(ROLLOUT)), column(ADVANTAGES), 0.2, 0.1)
    # 1.2214 > 1.1, good: held at 1.1 · .6065 < .8, bad: held at .8 · 1: free · .3679 < .8, bad: held · as the first
    torch.testing.assert_close(loss, column((-1.1, 0.8, -2.0, 0.4, -1.1)))
    assert is_clipped.tolist() == [True, True, False, True, True]
    loss.sum().backward()
    torch.testing.assert_close(policy.grad, column((0.0, 0.0, -2.0, 0.0, 0.0)))


def test_clipping_never_lets_a_step_look_better_than_it_is() -> None:
    ratio, advantages = torch.meshgrid(torch.linspace(0.1, 3, 50), torch.linspace(-2, 2, 50), indexing="ij")
    loss, is_clipped = clipped_surrogate(ratio, advantages, 0.2, 0.28)
    assert bool((loss >= -ratio * advantages).all())
    assert bool((loss[~is_clipped] == (-ratio * advantages)[~is_clipped]).all())
    assert not bool(is_clipped[(advantages < 0) & (ratio > 1)].any()), "a bad token that grew is pushed back, unclipped"


@pytest.mark.parametrize(
    ("kind", "estimate"),
    [
        ("k1", lambda x: x),
        ("k2", lambda x: x * x / 2),
        ("k3", lambda x: math.exp(-x) - 1 + x),
        ("low_var_kl", lambda x: math.exp(-x) - 1 + x),
    ],
)
def test_kl_of_five_tokens_against_a_second_implementation(kind, estimate) -> None:
    values = reference_kl(column(POLICY), column(REFERENCE), column(RATIOS), kind)
    expected = [r * estimate(p - q) for p, q, r in zip(POLICY, REFERENCE, RATIOS, strict=True)]
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_kl_to_itself_is_exactly_zero(kind) -> None:
    policy = torch.tensor(POLICY)
    assert reference_kl(policy, policy, torch.ones(5), kind).tolist() == [0.0] * 5


def test_exact_kl_to_itself_is_exactly_zero() -> None:
    logits = torch.randn(4, 11)
    assert exact_kl(logits, logits.clone()).tolist() == [0.0] * 4


def test_low_var_kl_is_bounded_where_k3_explodes() -> None:
    policy, reference, one = torch.tensor([-30.0]), torch.tensor([0.0]), torch.ones(1)
    assert float(reference_kl(policy, reference, one, "k3")) > 1e12
    assert float(reference_kl(policy, reference, one, "low_var_kl")) == 10.0


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
@pytest.mark.parametrize("is_weighed", [True, False])
def test_every_estimate_pulls_every_token_toward_the_reference(kind, is_weighed: bool) -> None:
    """dK/dℓ is ρ·x, and ρ·(±10) where low_var_kl holds x; never of the other sign, however far the policy has gone."""
    differences = torch.linspace(-12, 12, 25, dtype=torch.float64)
    policy = differences.clone().requires_grad_()
    ratio = importance_ratio(policy, policy.detach() - 0.5) if is_weighed else None
    (slope,) = torch.autograd.grad(reference_kl(policy, torch.zeros_like(differences), ratio, kind).sum(), policy)
    expected = differences.clamp(-10, 10) if kind == "low_var_kl" else differences
    torch.testing.assert_close(slope, expected * (math.exp(0.5) if is_weighed else 1.0))


def test_full_kl_is_no_estimate_from_tokens() -> None:
    with pytest.raises(ValueError, match="exact_kl"):
        reference_kl(torch.zeros(1), torch.zeros(1), torch.ones(1), "full")


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_estimates_have_the_gradient_of_the_exact_kl_though_others_sampled(kind) -> None:
    """Summed over the whole vocabulary with the behaviour's probabilities, an estimate becomes its expectation."""
    torch.manual_seed(0)
    logits = torch.randn(9, dtype=torch.float64, requires_grad=True)
    behaviour = torch.log_softmax(torch.randn(9, dtype=torch.float64), -1)
    reference = torch.randn(9, dtype=torch.float64)
    exact = exact_kl(logits[None], reference[None]).sum()
    policy = torch.log_softmax(logits, -1)
    ratio = importance_ratio(policy, behaviour)
    estimates = reference_kl(policy, torch.log_softmax(reference, -1), ratio, kind)
    expectation = (behaviour.exp() * estimates).sum()
    torch.testing.assert_close(*(torch.autograd.grad(f, logits, retain_graph=True)[0] for f in (expectation, exact)))
    if kind != "k2":
        torch.testing.assert_close(expectation, exact)


def test_exact_kl_and_entropy_against_sums_over_the_vocabulary() -> None:
    torch.manual_seed(1)
    p_logits, q_logits = torch.randn(2, 5, 7, dtype=torch.float64)
    p, q = p_logits.softmax(-1), q_logits.softmax(-1)
    torch.testing.assert_close(exact_kl(p_logits, q_logits), (p * (p / q).log()).sum(-1))
    torch.testing.assert_close(entropy(p_logits), -(p * p.log()).sum(-1))
    assert torch.autograd.gradcheck(exact_kl, (p_logits.requires_grad_(), q_logits))
    assert torch.autograd.gradcheck(entropy, (p_logits,))


def test_the_objective_of_five_tokens_is_the_sum_of_its_terms() -> None:
    loss_config = LossConfig(eps_clip_high=0.1, kl_loss_coef=0.5, kl_loss_type="k3", entropy_coef=0.25)
    loss, metrics = policy_objective(
        column(POLICY, grad=True),
        column(ROLLOUT),
        column(REFERENCE),
        column(ADVANTAGES),
        mean=Tensor.mean,
        config=plugin_settings(loss_config),
        compute_full_kl=lambda: pytest.fail("not asked for"),
        compute_entropy=lambda: column((1.0, 2.0, 3.0, 4.0, 5.0)),
    )
    policy = (-1.1 + 0.8 - 2.0 + 0.4 - 1.1) / 5
    differences = [p - q for p, q in zip(POLICY, REFERENCE, strict=True)]
    kl = sum(r * (math.exp(-x) - 1 + x) for r, x in zip(RATIOS, differences, strict=True)) / 5
    assert float(loss.detach()) == pytest.approx(policy + 0.5 * kl - 0.25 * 3.0)
    assert float(metrics["loss/kl"]) == pytest.approx(kl)
    assert float(metrics["train/clip_fraction"]) == pytest.approx(0.8)
    assert float(metrics["train/importance_weight_mean"]) == pytest.approx(sum(RATIOS) / 5)
