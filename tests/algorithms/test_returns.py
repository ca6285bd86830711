"""Generalised advantages against the double sum they are defined by, and the value loss by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slime.algorithms.returns import compute_gae, value_loss

finite = st.floats(-5, 5, allow_nan=False)


def by_definition(rewards: list[float], values: list[float], gamma: float, lambda_: float) -> list[float]:
    """Σ_k (γλ)^k (r + γ v' − v), every sum written out."""
    padded = [*values, 0.0]
    deltas = [r + gamma * padded[t + 1] - padded[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@settings(deadline=None)
@given(
    turns=st.lists(st.tuples(finite, finite), min_size=1, max_size=8),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
)
def test_the_recursion_is_the_double_sum(turns, gamma: float, lambda_: float) -> None:
    rewards, values = [r for r, _ in turns], [v for _, v in turns]
    found = compute_gae(torch.tensor(rewards, dtype=torch.float64), values, gamma, lambda_)
    expected = by_definition(rewards, values, gamma, lambda_)
    assert found.tolist() == [pytest.approx(a, abs=1e-9) for a in expected]


def test_lists_of_numbers_are_taken_as_the_published_processor_gives_them() -> None:
    found = compute_gae(rewards=[1.0, 0.5], values=[0, 0], gamma=0.99, lambda_=0.95)
    assert found.tolist() == pytest.approx([1.0 + 0.99 * 0.95 * 0.5, 0.5])


def test_three_turns_by_hand() -> None:
    # γ = ½, λ = ½, v = 1: δ = (0 + ½ − 1, 1 + ½ − 1, 2 − 1) = (−½, ½, 1); A₃ = 1, A₂ = ½ + ¼, A₁ = −½ + ¼·¾
    found = compute_gae(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), [1.0, 1.0, 1.0], 0.5, 0.5)
    assert found.tolist() == [-0.3125, 0.75, 1.0]


def test_perfect_values_leave_nothing_to_learn() -> None:
    rewards = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    returns = compute_gae(rewards, None, 0.9, 1.0)
    torch.testing.assert_close(compute_gae(rewards, returns, 0.9, 0.7), torch.zeros_like(rewards))


def test_the_value_loss_and_its_gradient_by_hand() -> None:
    values = torch.tensor([0.5, 0.1, -0.5, 0.5], dtype=torch.float64, requires_grad=True)
    returns = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    loss = value_loss(values, torch.zeros(4, dtype=torch.float64), returns, 0.2)
    # .5 → R = 1: clipped to .2, farther from 1, so .8²/2 and no push · .1: free · −.5 → clipped to −.2, nearer: 1.5²/2
    # .5 → R = 0: clipped is nearer: .5²/2
    assert loss.tolist() == [pytest.approx(x) for x in (0.32, 0.405, 1.125, 0.125)]
    loss.sum().backward()
    assert values.grad.tolist() == [pytest.approx(x) for x in (0.0, -0.9, -1.5, 0.5)]


def test_a_value_clip_of_zero_is_none() -> None:
    loss = value_loss(torch.tensor([3.0]), torch.tensor([0.0]), torch.tensor([1.0]), 0.0)
    assert loss.tolist() == [2.0]
