"""Dual clip, CISPO and the sequence ratio: values and gradients by hand, and against the definitions."""

from __future__ import annotations

import math

import pytest
import torch
from slime.algorithms.losses import (
    clipped_surrogate,
    clipped_weight_loss,
    importance_ratio,
    reference_kl,
    sequence_ratio,
)
from torch import Tensor


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_the_dual_clip_holds_a_bad_token_whose_ratio_exploded() -> None:
    policy = column(math.log(5.0), math.log(2.0), math.log(5.0), grad=True)
    advantages = column(-1.0, -1.0, 1.0)
    loss, is_clipped = clipped_surrogate(importance_ratio(policy, column(0, 0, 0)), advantages, 0.2, 0.28, 3.0)
    torch.testing.assert_close(loss, column(3.0, 2.0, -1.28))
    assert is_clipped.tolist() == [True, False, True]
    loss.sum().backward()
    torch.testing.assert_close(policy.grad, column(0.0, 2.0, 0.0))


def test_the_dual_clip_leaves_good_tokens_and_small_ratios_alone() -> None:
    ratio, advantages = torch.meshgrid(torch.linspace(0.1, 6, 60), torch.linspace(-2, 2, 51), indexing="ij")
    plain, _ = clipped_surrogate(ratio, advantages, 0.2, 0.28)
    dual, _ = clipped_surrogate(ratio, advantages, 0.2, 0.28, 3.0)
    changed = dual != plain
    assert bool((changed == ((advantages < 0) & (ratio > 3.0) & (plain > -3.0 * advantages))).all())
    assert bool((dual[changed] == (-3.0 * advantages)[changed]).all())


def test_cispo_clips_the_weight_and_keeps_every_gradient() -> None:
    policy = column(math.log(3.0), math.log(0.5), math.log(1.1), grad=True)
    ratio = importance_ratio(policy, column(0, 0, 0))
    loss, is_clipped = clipped_weight_loss(policy, ratio, column(1.0, -1.0, 2.0), 0.2, 0.28)
    weights = (1.28, 0.8, 1.1)
    expected = [-w * a * math.log(r) for w, a, r in zip(weights, (1.0, -1.0, 2.0), (3.0, 0.5, 1.1), strict=True)]
    torch.testing.assert_close(loss, column(*expected))
    assert is_clipped.tolist() == [True, True, False]
    loss.sum().backward()
    torch.testing.assert_close(policy.grad, column(-1.28, 0.8, -2.2))


def test_an_eps_clip_of_one_leaves_cispos_weight_free_below() -> None:
    policy = column(math.log(0.01))
    loss, is_clipped = clipped_weight_loss(policy, policy.exp(), column(1.0), 1.0, 0.28)
    assert (loss.item(), is_clipped.item()) == (pytest.approx(-0.01 * math.log(0.01)), False)


def test_the_sequence_ratio_has_the_value_of_the_sequence_and_the_gradient_of_the_token() -> None:
    policy, old = column(-1.0, -2.0, -0.5, grad=True), column(-1.4, -2.2, -0.5)
    ratio = sequence_ratio(policy, old, torch.tensor([0, 0, 1]))
    first = math.exp((0.4 + 0.2) / 2)
    torch.testing.assert_close(ratio, column(first, first, 1.0))
    ratio[0].backward()
    torch.testing.assert_close(policy.grad, column(first, 0.0, 0.0))


def test_gspo_token_has_gspos_gradient_where_a_sequence_has_one_advantage() -> None:
    """GSPO as it is first written: one clipped ratio a sequence, its gradient through the mean."""
    torch.manual_seed(0)
    index = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    old, noise = -torch.rand(2, 9, dtype=torch.float64)
    advantages_of_sequences = column(1.0, -0.5, 2.0)

    shifts = column(0.05, -0.05, 0.005)[index]  # too far up, too far down, near enough
    policy = (old + shifts + 1e-3 * noise).requires_grad_()
    whole = column(0.0).sum()
    for sequence, advantage in enumerate(advantages_of_sequences):
        s = torch.exp((policy - old)[index == sequence].mean())
        whole = whole - torch.min(s * advantage, s.clamp(1 - 0.02, 1 + 0.01) * advantage) / 3
    (expected,) = torch.autograd.grad(whole, policy)

    ratio = sequence_ratio(policy, old, index)
    loss, _ = clipped_surrogate(ratio, advantages_of_sequences[index], 0.02, 0.01)
    weights = 1.0 / torch.bincount(index).double()[index] / 3
    (found,) = torch.autograd.grad((loss * weights).sum(), policy)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close((loss * weights).sum(), whole)
    assert (found != 0).tolist() == [False] * 5 + [True] * 4


def test_a_truncated_sequence_ratio_keeps_its_gradient() -> None:
    policy = column(0.0, 0.0, grad=True)
    ratio = sequence_ratio(policy, column(-2.0, -2.0), torch.tensor([0, 0]), high=2.0)
    torch.testing.assert_close(ratio, column(2.0, 2.0))
    ratio.sum().backward()
    torch.testing.assert_close(policy.grad, column(2.0, 2.0))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_the_plain_estimate_carries_no_weight(kind) -> None:
    policy, reference = column(-1.0, -2.0), column(-1.5, -1.0)
    plain = reference_kl(policy, reference, None, kind)
    torch.testing.assert_close(plain, reference_kl(policy, reference, column(1.0, 1.0), kind))
    assert not torch.equal(plain, reference_kl(policy, reference, column(2.0, 0.5), kind))
