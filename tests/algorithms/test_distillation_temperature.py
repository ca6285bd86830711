"""Where distillation comes to rest, on tables of logits in float64, through the methods' own loss files.

A teacher without a hint is the policy itself and moves nothing, whatever replies are sampled at; one with a hint is
learned from.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slime.algorithms.distillation import untempered
from slime.algorithms.objective import policy_objective
from slime.config.sections import LossConfig, TeacherConfig
from slime.plugins.losses import load_loss
from slime.plugins.settings import plugin_settings
from torch import Tensor

ROOT = Path(__file__).parents[2]
LOSSES = {
    "opd": "openclaw-opd/custom_loss.py",
    "opd top-k": "openclaw-opd/custom_loss_topk.py",
    "combine": "openclaw-combine/custom_loss.py",
    "combine select": "openclaw-combine/custom_loss_select.py",
}
CONTEXTS, IDS, K = 8, 40, 8


def entropy(logits: Tensor) -> float:
    logprobs = torch.log_softmax(logits, -1)
    return float(-(logprobs.exp() * logprobs).sum(-1).mean())


def distil(loss: str, temperature: float, *, hint: float = 0.0, updates: int = 30) -> SimpleNamespace:
    """Train a table by a loss file on replies sampled at a temperature; the teacher is the policy as it is then, with
    `hint` added to the logit of id 0."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(CONTEXTS, IDS, dtype=torch.float64, generator=generator)
    start = logits.clone()
    wanted = torch.zeros_like(logits)
    wanted[:, 0] = hint
    logits.requires_grad_()
    config = {**plugin_settings(TeacherConfig(teacher_top_k=K)), **plugin_settings(LossConfig(kl_loss_coef=0.1))}
    loss_fn = load_loss(str(ROOT / LOSSES[loss]))
    optimizer = torch.optim.SGD([logits], lr=4.0)  # Adam makes whole steps of the sixteenth digit
    for _ in range(updates):
        optimizer.zero_grad()
        loss_fn(_values(logits, start, wanted, temperature, config, generator))[0].backward()
        optimizer.step()
    now = logits.detach()
    return SimpleNamespace(
        entropy_change=entropy(now) - entropy(start),
        wanted=(float(start.softmax(-1)[:, 0].mean()), float(now.softmax(-1)[:, 0].mean())),
    )


def _values(
    logits: Tensor, start: Tensor, wanted: Tensor, temperature: float, config: Any, generator: torch.Generator
) -> dict[str, Any]:
    """What the trainer would offer for 16 replies of one token to each context."""
    behaviour = torch.log_softmax(logits.detach() / temperature, -1)
    ids = torch.multinomial(behaviour.exp(), 16, replacement=True, generator=generator)
    rows = torch.arange(CONTEXTS).repeat_interleave(16)

    def of(table: Tensor) -> Tensor:
        return torch.log_softmax(table, -1)[rows, ids.flatten()]

    def topk_and_tail(top: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(logits[rows] / temperature, -1)
        others = logprobs.scatter(-1, top, -torch.inf)
        return logprobs.gather(-1, top), torch.logsumexp(others, -1)

    teacher = torch.log_softmax(logits.detach() + wanted, -1)[rows]
    own = torch.log_softmax(logits.detach(), -1)[rows]
    top = teacher.topk(K, dim=-1).indices
    policy, rollout, reference = (of(table / temperature) for table in (logits, logits.detach(), start))
    temperatures = torch.full_like(rollout, temperature)

    def objective(advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        nothing: dict[str, Any] = {"compute_full_kl": None, "compute_entropy": None}
        return policy_objective(policy, rollout, reference, advantages, mean=torch.mean, config=config, **nothing)

    return {
        "config": config,
        "policy_objective": objective,
        "sum_of_sample_mean": torch.mean,
        "rollout_logprobs": rollout,
        "untempered_rollout_logprobs": untempered(rollout, rollout, of(logits.detach()), temperatures),
        "advantages": torch.zeros_like(rollout),
        "has_teacher": torch.ones_like(rollout, dtype=torch.bool),
        "teacher_logprobs": of(logits.detach() + wanted),
        "teacher_topk_ids": top,
        "teacher_topk_logprobs": teacher.gather(-1, top),
        "rollout_topk_logprobs": own.gather(-1, top),
        "policy_topk_logprobs": lambda top, temperature: topk_and_tail(top, temperature)[0],
        "policy_topk_and_tail_logprobs": topk_and_tail,
    }


@pytest.mark.parametrize("temperature", [0.6, 0.8, 1.0, 1.4])
@pytest.mark.parametrize("loss", LOSSES)
def test_without_a_hint_distillation_moves_nothing_at_any_temperature(loss: str, temperature: float) -> None:
    assert abs(distil(loss, temperature).entropy_change) <= 1e-6


@pytest.mark.parametrize("loss", LOSSES)
def test_a_hint_is_learned_at_a_low_temperature_too(loss: str) -> None:
    before, after = distil(loss, 0.6, hint=3.0).wanted
    _, at_one = distil(loss, 1.0, hint=3.0).wanted
    assert after > 2 * before
    assert after - before > 0.5 * (at_one - before)


def test_a_stale_behaviour_is_carried_to_temperature_one_up_to_a_baseline() -> None:
    generator = torch.Generator().manual_seed(1)
    behaviour, proximal = (torch.randn(5, 7, dtype=torch.float64, generator=generator) for _ in range(2))
    temperatures = torch.tensor([0.3, 0.6, 1.0, 1.4, 3.0], dtype=torch.float64)
    tempered = [torch.log_softmax(logits / temperatures[:, None], -1) for logits in (behaviour, proximal)]
    at_one = [torch.log_softmax(logits, -1) for logits in (behaviour, proximal)]
    columns = [untempered(*(t[:, i] for t in tempered), at_one[1][:, i], temperatures) for i in range(7)]
    error = torch.stack(columns, dim=1) - at_one[0]
    assert torch.allclose(error, error[:, :1].expand(-1, 7), atol=1e-12), "the same for all tokens of a context"
    assert torch.allclose(error[2], torch.zeros(7, dtype=torch.float64), atol=1e-12)
    fresh = [untempered(tempered[0][:, i], tempered[0][:, i], at_one[0][:, i], temperatures) for i in range(7)]
    assert torch.equal(torch.stack(fresh, dim=1), at_one[0]), "to the bit where nothing is stale"
