"""The objective against a second one, written token by token from the papers, values and gradients in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from slime.algorithms.objective import PolicyHooks, policy_objective
from slime.config.checks.contradictions import check_loss_settings
from slime.config.sections import LossConfig
from slime.errors import ConfigError
from slime.plugins.settings import plugin_settings
from torch import Tensor

N = 24
INDEX = torch.tensor([0] * 5 + [1] * 1 + [2] * 8 + [3] * 10)
CORRECTIONS = ["tis", "decoupled", "icepop", "none", *(("mis", *p) for p in itertools.product(
    ("token", "sequence", "geometric"), ("truncate", "clip", "mask")
))]  # fmt: skip


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Log-probs of now, of the start of the batch, of sampling time and of the reference, all a little apart."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(N, dtype=torch.float64, generator=generator)

    rollout = -1.5 + noise(0.5).clamp(-1, 1)
    proximal = rollout + noise(0.4)
    return {
        "policy_logprobs": (proximal + noise(0.3)).requires_grad_(),
        "rollout_logprobs": rollout,
        "reference_logprobs": rollout + noise(0.5),
        "advantages": noise(1.0),
        "proximal_logprobs": proximal,
    }


def objective(
    values: Mapping[str, Tensor], config: LossConfig, mean=Tensor.mean, hooks: PolicyHooks = PolicyHooks()
) -> tuple[Tensor, dict[str, Tensor]]:
    return policy_objective(
        *(values[name] for name in ("policy_logprobs", "rollout_logprobs", "reference_logprobs", "advantages")),
        mean=mean,
        config=plugin_settings(config),
        compute_full_kl=lambda: pytest.fail("not asked for"),
        compute_entropy=lambda: pytest.fail("not asked for"),
        proximal_logprobs=values["proximal_logprobs"],
        sequence_index=INDEX,
        hooks=hooks,
    )


def token_by_token(values: Mapping[str, Tensor], config: LossConfig) -> Tensor:
    """The same from the formulas, one token at a time, with torch for the gradient only."""
    now, old = values["policy_logprobs"], values["proximal_logprobs"]
    at = now.detach().tolist()
    behaviour, reference, advantages = (values[n] for n in ("rollout_logprobs", "reference_logprobs", "advantages"))
    low, high = config.tis_clip_low, config.tis_clip
    total = torch.zeros((), dtype=torch.float64)
    for t in range(N):
        same = [u for u in range(N) if INDEX[u] == INDEX[t]]
        a = float(advantages[t])
        anchor = behaviour if config.behaviour_correction == "tis" else old
        if config.advantage_estimator == "gspo":
            value = math.exp(sum(at[u] - float(anchor[u]) for u in same) / len(same))
        else:
            value = math.exp(at[t] - float(anchor[t]))
        if config.behaviour_correction == "tis":
            value = min(max(value, low), high)
        ratio = value * torch.exp(now[t] - now[t].detach())
        held = ratio.clamp(1 - config.eps_clip, 1 + config.eps_clip_high)
        if config.advantage_estimator == "cispo":
            loss = -held.detach() * a * now[t]
        else:
            gain = torch.min(ratio * a, held * a)
            if config.eps_clip_c and a < 0:
                gain = torch.max(gain, torch.tensor(config.eps_clip_c * a, dtype=torch.float64))
            loss = -gain
        loss = loss * _weight(t, same, old.tolist(), behaviour.tolist(), config)
        if config.use_opsm and a < 0:
            left = sum(float(behaviour[u]) - at[u] for u in same) / len(same)
            loss = loss * (left <= config.opsm_delta)
        if config.kl_loss_coef:
            x = at[t] - float(reference[t])
            importance = math.exp(at[t] - float((old if config.behaviour_correction == "none" else behaviour)[t]))
            if config.behaviour_correction != "none":
                importance = min(max(importance, low), high)
            weight = importance if config.use_unbiased_kl else 1.0
            kl = {"k1": x, "k2": x * x / 2, "k3": math.exp(-x) - 1 + x}[config.kl_loss_type]
            score = now[t] - now[t].detach()  # whatever is reported, the gradient is the KL's
            loss = loss + config.kl_loss_coef * weight * (kl + x * score)
        total = total + loss / N
    return total


def _weight(t: int, same: list[int], old: list[float], behaviour: list[float], config: LossConfig) -> float:
    correction, low, high = config.behaviour_correction, config.tis_clip_low, config.tis_clip
    if correction in ("tis", "none"):
        return 1.0
    level, mode = {"decoupled": ("token", "clip"), "icepop": ("token", "mask")}.get(
        correction, (config.mis_level, config.mis_mode)
    )
    logs = [old[u] - behaviour[u] for u in same]
    log = {"token": old[t] - behaviour[t], "sequence": sum(logs), "geometric": sum(logs) / len(logs)}[level]
    weight = math.exp(log)
    if mode == "mask":
        return weight if low <= weight <= high else 0.0
    return min(weight, high) if mode == "truncate" else min(max(weight, low), high)


def check(config: LossConfig, seed: int = 0) -> None:
    values = tensors(seed)
    found, _ = objective(values, config)
    expected = token_by_token(values, config)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    gradients = [torch.autograd.grad(loss, values["policy_logprobs"])[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo"])
@pytest.mark.parametrize("correction", CORRECTIONS, ids=str)
def test_every_correction_with_every_surrogate(estimator: Any, correction: Any) -> None:
    name, *rest = (correction,) if isinstance(correction, str) else correction
    chosen: dict[str, Any] = dict(zip(("mis_level", "mis_mode"), rest, strict=False))
    check(
        LossConfig(
            advantage_estimator=estimator,
            behaviour_correction=name,
            tis_clip=1.5,
            tis_clip_low=0.6,
            kl_loss_coef=0.0,
            **chosen,
        )
    )


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("is_unbiased", [True, False])
@pytest.mark.parametrize("correction", ["tis", "decoupled", "none"])
def test_the_kl_in_the_loss(kind: Any, is_unbiased: bool, correction: Any) -> None:
    check(LossConfig(kl_loss_coef=0.3, kl_loss_type=kind, use_unbiased_kl=is_unbiased, behaviour_correction=correction))


@pytest.mark.parametrize("correction", ["tis", "icepop"])
def test_dual_clip_and_sequence_mask(correction: Any) -> None:
    for seed in range(3):
        check(LossConfig(eps_clip_c=1.2, use_opsm=True, opsm_delta=0.02, behaviour_correction=correction), seed)


@pytest.mark.parametrize("correction", ["tis", "decoupled", "mis", "icepop", "none"])
@pytest.mark.parametrize("estimator", ["reinforce", "gspo", "cispo"])
def test_on_policy_they_are_all_the_policy_gradient(correction: Any, estimator: Any) -> None:
    values = tensors()
    now = values["policy_logprobs"].detach()
    values |= {"rollout_logprobs": now, "proximal_logprobs": now}
    config = LossConfig(behaviour_correction=correction, advantage_estimator=estimator, kl_loss_coef=0.0)
    loss, metrics = objective(values, config)
    (gradient,) = torch.autograd.grad(loss, values["policy_logprobs"])
    torch.testing.assert_close(gradient, -values["advantages"] / N)
    assert float(metrics["train/rollout_kl"]) == 0.0
    assert float(metrics["train/clip_fraction"]) == 0.0
    assert float(metrics["train/importance_weight_mean"]) == 1.0


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
@pytest.mark.parametrize("correction", ["tis", "decoupled", "none"])
def test_the_kl_of_a_policy_to_itself_is_zero_from_both_sides(kind: Any, correction: Any) -> None:
    values = tensors()
    values["reference_logprobs"] = values["policy_logprobs"].detach()
    config = LossConfig(kl_loss_coef=1.0, kl_loss_type=kind, behaviour_correction=correction)
    _, metrics = objective(values, config)
    assert float(metrics["loss/kl"]) == 0.0


def test_advantages_of_zero_give_exactly_zero() -> None:
    for estimator, correction in itertools.product(("reinforce", "gspo", "cispo"), ("tis", "decoupled", "icepop")):
        values = tensors() | {"advantages": torch.zeros(N, dtype=torch.float64)}
        config = LossConfig(advantage_estimator=estimator, behaviour_correction=correction, kl_loss_coef=0.0)
        loss, _ = objective(values, config)
        (gradient,) = torch.autograd.grad(loss, values["policy_logprobs"])
        assert float(loss.detach()) == 0.0
        assert not bool(gradient.any())


@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_a_veto_leaves_the_other_replies_as_they_are(mode: Any) -> None:
    """Over all tokens: the loss is what it was less the vetoed reply's own share, by the loop of the formulas."""
    values = tensors()
    values["proximal_logprobs"] = values["proximal_logprobs"].index_add(
        0, torch.tensor([7]), torch.tensor([-9.0], dtype=torch.float64)
    )
    settings = {"behaviour_correction": "mis", "mis_mode": mode, "kl_loss_coef": 0.0}
    vetoing = LossConfig(**settings, mis_veto_threshold=1e-3)
    loss, metrics = objective(values, vetoing)
    kept = [t for t in range(N) if INDEX[t] != INDEX[7]]
    each: list[Tensor] = []
    objective(values, LossConfig(**settings), mean=lambda x: each.append(x) or x.mean())
    torch.testing.assert_close(loss, each[0][kept].sum() / N, atol=1e-12, rtol=1e-12)
    assert float(metrics["train/rejected_fraction"]) >= 8 / N
    check(LossConfig(**settings, mis_veto_threshold=1e-30))  # nothing is that far away: the loss without a veto


@pytest.mark.parametrize("correction", ["tis", "decoupled", "icepop", "none"])
def test_a_veto_without_masked_importance_sampling_is_refused(correction: Any) -> None:
    with pytest.raises(ConfigError, match=f"--mis-veto-threshold is for .* not {correction}"):
        check_loss_settings(LossConfig(behaviour_correction=correction, mis_veto_threshold=1e-4))


def test_a_function_in_the_place_of_the_weights() -> None:
    """Given the weights of `decoupled` it gives the loss of `decoupled`; what it masks leaves the numerator only."""
    values = tensors()
    config = LossConfig(behaviour_correction="decoupled", kl_loss_coef=0.0)
    ratio = torch.exp(values["proximal_logprobs"] - values["rollout_logprobs"])
    half = torch.arange(N) < N // 2

    def call(mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        hooks = PolicyHooks(weigh=lambda losses: (losses * ratio.clamp(0, 2), mask.double(), {"seen": ratio}))
        return objective(values, config, hooks=hooks)

    whole, metrics = call(torch.ones(N))
    torch.testing.assert_close(whole, objective(values, config)[0])
    torch.testing.assert_close(metrics["train/seen"], ratio.mean())
    first, metrics = call(half)
    second, _ = call(~half)
    torch.testing.assert_close(first + second, whole)
    assert float(metrics["train/rejected_fraction"]) == 0.5


def test_a_function_in_the_place_of_the_mean_is_given_the_policy_loss_alone() -> None:
    values = tensors()
    config = LossConfig(behaviour_correction="icepop", kl_loss_coef=0.5, kl_loss_type="k1", use_unbiased_kl=False)
    hooks = PolicyHooks(reduce=lambda losses, kept: (losses * kept).sum() * 10)
    found, metrics = objective(values, config, hooks=hooks)
    plain, plain_metrics = objective(values, config)
    torch.testing.assert_close(found - plain, (10 * N - 1) * plain_metrics["loss/policy"])
    assert metrics["loss/kl"] == plain_metrics["loss/kl"]
    assert metrics["train/rollout_kl"] == plain_metrics["train/rollout_kl"]


def test_rejection_changes_numerators_only_and_metrics_see_every_token() -> None:
    values = tensors()
    rejecting = LossConfig(behaviour_correction="icepop", tis_clip=1.25, tis_clip_low=0.8, kl_loss_coef=0.0)
    free = LossConfig(behaviour_correction="icepop", tis_clip=1e9, kl_loss_coef=0.0)
    seen: list[int] = []

    def mean(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x.sum() / N

    _, metrics = objective(values, rejecting, mean)
    _, of_all = objective(values, free, mean)
    assert set(seen) == {N}
    assert 0.0 < float(metrics["train/rejected_fraction"]) < 1.0
    assert float(of_all["train/rejected_fraction"]) == 0.0
    assert float(metrics["train/rollout_kl"]) == float(of_all["train/rollout_kl"]) > 0.0


def test_what_is_needed_and_missing_is_said() -> None:
    values = tensors()
    four = [values[name] for name in ("policy_logprobs", "rollout_logprobs", "reference_logprobs", "advantages")]
    rest: dict[str, Any] = {
        "mean": Tensor.mean,
        "compute_full_kl": lambda: pytest.fail("not asked for"),
        "compute_entropy": lambda: pytest.fail("not asked for"),
    }
    with pytest.raises(ValueError, match="'decoupled' needs proximal_logprobs"):
        policy_objective(*four, config=plugin_settings(LossConfig(behaviour_correction="decoupled")), **rest)
    with pytest.raises(ValueError, match="needs sequence_index"):
        policy_objective(*four, config=plugin_settings(LossConfig(advantage_estimator="gspo")), **rest)
    policy_objective(*four, config=plugin_settings(LossConfig()), **rest)
