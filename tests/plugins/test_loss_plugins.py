"""Published loss files run as they are; what comes out of a loss is checked."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slime.algorithms.returns import compute_gae
from slime.config.sections import LossConfig
from slime.errors import PluginError
from slime.plugins.losses import load_loss
from slime.plugins.settings import plugin_settings

PUBLISHED = Path(__file__).parent / "published"


@pytest.fixture
def values() -> dict[str, Any]:
    """Five trainable tokens: a turn of two, then, in another sample, turns of two and one."""
    return {
        "policy_logprobs": torch.tensor([-0.5, -1.0, -0.2, -0.7, -1.5], requires_grad=True),
        "reference_logprobs": torch.tensor([-0.6, -0.8, -0.2, -1.7, -1.5]),
        "teacher_logprobs": torch.tensor([-0.4, -1.1, -0.3, -0.2, -1.0]),
        "tempered_teacher_logprobs": torch.tensor([-0.4, -1.1, -0.3, -0.2, -1.0]),
        "rewards": torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0]),
        "advantages": torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0]),
        "loss_mask": torch.ones(5),
        "advantage_mask": torch.ones(5),
        "sample_index": torch.tensor([0, 0, 1, 1, 1]),
        "turn_index": torch.tensor([0, 0, 1, 1, 2]),
        "config": plugin_settings(LossConfig(eps_clip=0.1, kl_loss_coef=0.5)),
        "clip_ratio": 0.1,
        "binary_weight": 0.25,
        "opd_weight": 0.75,
    }


def test_the_published_loss(values):
    hook = load_loss(f"{PUBLISHED}/custom_loss.py")
    assert hook.asks_for == {"policy_logprobs", "reference_logprobs", "rewards", "advantages", "config"}
    assert not hook.is_sum_over_samples
    loss, metrics = hook(values)
    expected = 0.0
    policy, reference = values["policy_logprobs"].tolist(), values["reference_logprobs"].tolist()
    for p, r, a in zip(policy, reference, values["advantages"].tolist(), strict=True):
        ratio = math.exp(p - r)
        expected += -min(ratio * a, min(max(ratio, 0.9), 1.1) * a) / 5 + 0.5 * (p - r) / 5
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert metrics == {}
    loss.backward()
    assert values["policy_logprobs"].grad.abs().sum() > 0


def test_the_published_distillation_loss_gets_the_runs_clip_and_not_its_own_default(values):
    loss, _ = load_loss(f"{PUBLISHED}/custom_opd_loss.py")(values)
    student, teacher = values["policy_logprobs"].detach(), values["teacher_logprobs"]
    ratio = (student - teacher).exp()
    gap = student - teacher
    expected = torch.max(gap * ratio, gap * ratio.clamp(0.9, 1.1)).mean()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_published_hybrid_loss_calls_compute_gae_and_reports_metrics(values):
    assert load_loss(f"{PUBLISHED}/hybrid_loss.py").looks_ahead
    assert not load_loss(f"{PUBLISHED}/custom_opd_loss.py").looks_ahead
    second = torch.tensor([[0.0], [0.0], [1.0], [1.0], [0.0]])  # what the turn after the token's earned
    loss, metrics = load_loss(f"{PUBLISHED}/hybrid_loss.py")(values | {"later_rewards": second})
    later = 0.99 * 0.95
    by_turn = torch.tensor([1.0, 1.0, -1.0 + later, -1.0 + later, 1.0])
    binary = -by_turn.mean().item()
    distilled = -(values["teacher_logprobs"] - values["policy_logprobs"]).mean().item()
    assert metrics == {
        "binary_loss": pytest.approx(binary, abs=1e-6),
        "opd_loss": pytest.approx(distilled, abs=1e-6),
        "total_loss": pytest.approx(0.25 * binary + 0.75 * distilled, abs=1e-6),
    }
    assert loss.item() == pytest.approx(metrics["total_loss"])


def test_compute_gae_refuses_rewards_that_only_some_of_the_turns_were_given(tmp_path: Path, values):
    file = tmp_path / "custom_loss.py"
    file.write_text(
        "def compute_loss(policy_logprobs, rewards):\n    return (policy_logprobs * compute_gae(2 * rewards)).sum()\n"
    )
    later = {"later_rewards": torch.tensor([[0.0], [0.0], [1.0], [1.0], [0.0]])}
    with pytest.raises(PluginError, match="give it the rewards as they are, and scale what comes out"):
        load_loss(str(file))(values | later)
    load_loss(str(file))(values | {"later_rewards": torch.zeros(5, 0)})


def test_slimes_style():
    """Two documents of 4 and 3 tokens with responses of 2 and 1, packed as slime packs them."""
    torch.manual_seed(0)
    logits = torch.randn(1, 7, 9, requires_grad=True)
    documents = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7])]
    old = [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])]
    batch = {
        "unconcat_tokens": documents,
        "total_lengths": [4, 3],
        "response_lengths": [2, 1],
        "loss_masks": [torch.ones(2), torch.ones(1)],
        "log_probs": old,
        "advantages": [torch.tensor([1.0, 1.0]), torch.tensor([-0.5])],
    }
    hook = load_loss(f"{PUBLISHED}/slime_loss.py:policy_gradient")
    assert hook.is_sum_over_samples
    weights = torch.tensor([0.5, 0.5, 1.0])
    offered = {"args": SimpleNamespace(rollout_temperature=2.0), "batch": batch, "logits": logits}
    loss, metrics = hook({**offered, "sum_of_sample_mean": lambda x: (x * weights).sum()})
    logprobs = (logits.detach()[0] / 2.0).log_softmax(-1)
    ratios = [
        math.exp(logprobs[1, 3] + 1.0),
        math.exp(logprobs[2, 4] + 2.0),
        math.exp(logprobs[5, 7] + 3.0),
    ]
    assert loss.item() == pytest.approx(-0.5 * (ratios[0] + ratios[1]) + 0.5 * ratios[2], rel=1e-5)
    assert metrics == {"pg_loss": pytest.approx(loss.item())}


def test_a_registered_field_is_on_offer(tmp_path, values):
    (tmp_path / "l.py").write_text(
        "def compute_loss(policy_logprobs, policy_versions):\n    return policy_logprobs.sum()\n"
    )
    assert "policy_versions" in load_loss(f"{tmp_path}/l.py").asks_for


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return policy_logprobs", "gave a tensor of shape (5,); reduce it to one number"),
        ("return 1.0", "gave float; a loss is a tensor of one number, or (loss, metrics)"),
        ("return policy_logprobs.detach().sum()", "gave a loss without a gradient"),
        ("return policy_logprobs.sum(), 3", "gave metrics of type int"),
        ("return policy_logprobs.sum(), {'x': policy_logprobs}", "gave metric 'x' of type Tensor"),
    ],
)
def test_what_is_no_loss_is_refused(tmp_path, values, body, words):
    file = tmp_path / "custom_loss.py"
    file.write_text(f"def compute_loss(policy_logprobs):\n    {body}\n")
    with pytest.raises(PluginError) as caught:
        load_loss(str(file))(values)
    assert str(caught.value).startswith("custom_loss.py:compute_loss " + words)


def test_gae_against_its_definition():
    rewards, values = torch.tensor([0.3, -1.0, 2.0]), [0.1, 0.2, -0.4]
    gamma, lambda_ = 0.9, 0.8
    deltas = [0.3 + gamma * 0.2 - 0.1, -1.0 + gamma * -0.4 - 0.2, 2.0 + 0.4]
    expected = [sum((gamma * lambda_) ** (j - k) * deltas[j] for j in range(k, 3)) for k in range(3)]
    assert compute_gae(rewards, values, gamma, lambda_).tolist() == pytest.approx(expected)
