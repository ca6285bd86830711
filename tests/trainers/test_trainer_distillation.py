"""The losses of distillation and its combination with a reward, in the real trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import (
    BINARY_RL,
    ROOT,
    VOCAB_SIZE,
    batch_of,
    gradients_of,
    logprobs_of,
    random_samples,
    relative_difference,
    trainer_of,
)
from slime.config.sections import LossConfig, TeacherConfig
from slime.errors import PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook, load_loss
from slime.plugins.settings import plugin_settings
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Sample

OPD = ROOT / "openclaw-opd"
COMBINE = ROOT / "openclaw-combine"


def with_streams(samples: Sequence[Sample], **streams: Any) -> list[Sample]:
    """The samples with further streams, each made by a function of the sample."""
    return [
        dataclasses.replace(s, streams={**s.streams, **{name: tuple(make(s)) for name, make in streams.items()}})
        for s in samples
    ]


def one_teacher_in_two(samples: Sequence[Sample]) -> list[Sample]:
    """Even samples have a teacher that finds every token likelier by ½; odd ones have nonsense in its place."""
    made = with_streams(
        samples,
        teacher_logprobs=lambda s: [lp + 0.5 for lp in s.streams["rollout_logprobs"]],
        has_teacher=lambda s: s.streams["loss_mask"],
    )
    for index in range(1, len(made), 2):
        nothing = {
            "teacher_logprobs": (-77.0,) * len(made[index].token_ids),
            "has_teacher": (0,) * len(made[index].token_ids),
        }
        made[index] = dataclasses.replace(made[index], streams={**made[index].streams, **nothing})
    return made


def learner(
    policy_dir: Path,
    loss_path: Path,
    *,
    teacher: dict[str, Any] | None = None,
    loss: dict[str, Any] | None = None,
    **more: Any,
) -> TorchTrainer:
    """A trainer whose loss sees the teacher's settings too, as in a run."""
    settings = {**plugin_settings(TeacherConfig(**(teacher or {}))), **plugin_settings(LossConfig(**(loss or {})))}
    return trainer_of(policy_dir, loss=loss, loss_fn=load_loss(str(loss_path)), settings=settings, **more)


def hook(function: Any) -> LossHook:
    return LossHook(NamedCall.match(function, LOSS.names | {n: n for n in ("has_teacher", "temperature")}))


def test_log_probs_of_k_ids_are_those_of_a_forward_pass(policy_dir: Path) -> None:
    [sample] = random_samples(1, seed=3)
    sample = dataclasses.replace(sample, values={**sample.values, "temperature": 0.7})
    seen: dict[str, torch.Tensor] = {}

    def compute_loss(policy_logprobs, policy_topk_logprobs):
        everything = torch.arange(VOCAB_SIZE).expand(len(policy_logprobs), -1)
        seen["own"], seen["plain"] = policy_topk_logprobs(everything), policy_topk_logprobs(everything, temperature=1.0)
        seen["sampled"] = policy_logprobs
        return policy_logprobs.mean() + 0 * policy_topk_logprobs(everything).sum()

    trainer_of(policy_dir, loss_fn=hook(compute_loss)).train(batch_of([sample]))
    places = [i for i, flag in enumerate(sample.streams["loss_mask"]) if flag]
    targets = torch.tensor([sample.token_ids[i] for i in places])[:, None]
    assert torch.allclose(seen["own"].gather(1, targets)[:, 0], seen["sampled"], atol=1e-6)
    for temperature, name in ((0.7, "own"), (1.0, "plain")):
        expected = logprobs_of(policy_dir, sample.token_ids, temperature)[[i - 1 for i in places]]
        assert torch.allclose(seen[name].gather(1, targets)[:, 0], expected, atol=1e-5)
        assert torch.allclose(seen[name].exp().sum(-1), torch.ones(len(places)), atol=1e-5)


def test_the_advantage_of_distillation_is_the_teachers_log_prob_less_the_behaviours(policy_dir: Path) -> None:
    def by_hand(
        policy_logprobs,
        rollout_logprobs,
        teacher_logprobs,
        has_teacher,
        temperature,
        policy_topk_logprobs,
        sum_of_sample_mean,
    ):
        everything = torch.arange(VOCAB_SIZE).expand(len(policy_logprobs), -1)
        partition = [policy_topk_logprobs(everything, temperature=t)[:, :1].detach() for t in (1.0, None)]
        at_one = rollout_logprobs * temperature + (partition[0] - temperature[:, None] * partition[1])[:, 0]
        advantages = 0.5 * (teacher_logprobs - at_one) * has_teacher
        ratio = torch.exp(policy_logprobs - rollout_logprobs)
        bounded = ratio.clamp(0.8, 1.28)
        return sum_of_sample_mean(torch.maximum(-ratio * advantages, -bounded * advantages))

    samples = [s for s in one_teacher_in_two(random_samples(6))]
    loss = {"w_opd": 0.5, "kl_loss_coef": 0.0, "tis_clip": 1e9}
    ours = gradients_of(learner(policy_dir, OPD / "custom_loss.py", loss=loss), batch_of(samples))
    expected = gradients_of(trainer_of(policy_dir, loss=loss, loss_fn=hook(by_hand)), batch_of(samples))
    assert relative_difference(ours, expected) < 1e-5


def test_where_no_teacher_spoke_combine_is_binary_rl_to_the_bit(policy_dir: Path) -> None:
    samples = one_teacher_in_two(random_samples(6))[1::2]
    plain = gradients_of(trainer_of(policy_dir, loss_fn=load_loss(str(BINARY_RL))), batch_of(samples))
    combined = gradients_of(learner(policy_dir, COMBINE / "custom_loss.py"), batch_of(samples))
    assert all(torch.equal(combined[name], gradient) for name, gradient in plain.items())


def test_combine_is_the_sum_of_both_parts(policy_dir: Path) -> None:
    """On the way out nothing is clipped, and the gradient is linear in the advantages."""
    samples = [
        dataclasses.replace(s, values={**s.values, "temperature": 1.0}) for s in one_teacher_in_two(random_samples(6))
    ]
    samples = with_streams(samples, rollout_logprobs=lambda s: [0.0, *logprobs_of(policy_dir, s.token_ids).tolist()])
    batch = batch_of(samples)
    both, reward, teacher = (
        gradients_of(
            learner(policy_dir, COMBINE / "custom_loss.py", loss={"w_rl": w_rl, "w_opd": w_opd, "kl_loss_coef": 0.0}),
            batch,
        )
        for w_rl, w_opd in ((2.0, 0.5), (2.0, 0.0), (0.0, 0.5))
    )
    summed = {name: reward[name] + teacher[name] for name in both}
    assert relative_difference(both, summed) < 1e-4
    alone = gradients_of(learner(policy_dir, OPD / "custom_loss.py", loss={"w_opd": 0.5, "kl_loss_coef": 0.0}), batch)
    assert relative_difference(teacher, alone) < 1e-6


def test_a_turn_without_a_score_has_no_advantage_of_its_own_and_moves_no_baseline(policy_dir: Path) -> None:
    scored, unscored = random_samples(2, seed=8)
    unscored = with_streams([unscored], has_reward=lambda s: (0,) * len(s.token_ids))[0]
    seen: list[torch.Tensor] = []

    def compute_loss(policy_logprobs, advantages):
        seen.append(advantages.clone())
        return policy_logprobs.mean()

    trainer = trainer_of(policy_dir, loss_fn=hook(compute_loss))
    trainer.train(batch_of([scored, unscored]))
    assert [bool(advantages.any()) for advantages in seen] == [True, False]
    alone = trainer_of(policy_dir, loss_fn=hook(compute_loss))
    alone.train(batch_of([scored]))
    assert trainer.baseline.state() == alone.baseline.state()


def sampled_by(policy_dir: Path, temperature: float, number: int = 4) -> list[Sample]:
    """On-policy samples at a temperature, without a reward, whose teacher is the policy itself."""

    def logprobs(sample: Sample, at: float) -> list[float]:
        return [0.0, *logprobs_of(policy_dir, sample.token_ids, at).tolist()]

    samples = [
        dataclasses.replace(s, values={"reward": 0.0, "temperature": temperature}) for s in random_samples(number)
    ]
    return with_streams(
        samples,
        rollout_logprobs=lambda s: logprobs(s, temperature),
        teacher_logprobs=lambda s: logprobs(s, 1.0),
        has_teacher=lambda s: s.streams["loss_mask"],
    )


@pytest.mark.parametrize("temperature", [0.6, 1.4])
@pytest.mark.parametrize("path", [OPD / "custom_loss.py", COMBINE / "custom_loss.py"])
def test_a_teacher_that_is_the_policy_has_no_gradient_at_any_temperature(
    policy_dir: Path, path: Path, temperature: float
) -> None:
    loss = {"kl_loss_coef": 0.0}
    agreed = sampled_by(policy_dir, temperature)
    hinted = with_streams(agreed, teacher_logprobs=lambda s: [lp + 0.5 for lp in s.streams["teacher_logprobs"]])
    none, some = (
        sum(float(g.double().square().sum()) for g in gradients_of(learner(policy_dir, path, loss=loss), b).values())
        for b in map(batch_of, (agreed, hinted))
    )
    assert none**0.5 < 1e-5 * some**0.5


def test_in_several_steps_the_policy_at_their_start_is_what_a_teacher_is_compared_with(policy_dir: Path) -> None:
    seen: list[torch.Tensor] = []

    def compute_loss(policy_logprobs, untempered_rollout_logprobs, teacher_logprobs, sum_of_sample_mean):
        seen.append((teacher_logprobs - untempered_rollout_logprobs).abs().max())
        return sum_of_sample_mean(-policy_logprobs)

    trainer = trainer_of(policy_dir, loss_fn=hook(compute_loss), num_steps_per_rollout=3)
    trainer.train(batch_of(sampled_by(policy_dir, 0.6, number=9)))
    assert len(seen) == 3
    assert max(seen) < 1e-4


def test_where_no_teacher_spoke_its_log_probs_are_the_policys(policy_dir: Path) -> None:
    def compute_loss(policy_logprobs, teacher_logprobs, advantage_mask, sum_of_sample_mean):
        assert torch.equal(teacher_logprobs[advantage_mask == 0], policy_logprobs.detach()[advantage_mask == 0])
        assert not teacher_logprobs.requires_grad
        assert set(advantage_mask.tolist()) == {0.0, 1.0}
        return sum_of_sample_mean(policy_logprobs)

    trainer_of(policy_dir, loss_fn=hook(compute_loss)).train(batch_of(one_teacher_in_two(random_samples(6))))


def with_top_ids(samples: Sequence[Sample], k: int) -> list[Sample]:
    """Samples with k ids a token, the last of them missing now and then, and made-up log-probs of two models."""
    generator = torch.Generator().manual_seed(11)
    made = []
    for sample in one_teacher_in_two(samples):
        length = len(sample.token_ids)
        ids = torch.stack([torch.randperm(VOCAB_SIZE, generator=generator)[:k] for _ in range(length)])
        ids[::3, -1] = -1
        models = [torch.log_softmax(torch.randn(length, VOCAB_SIZE, generator=generator), -1) for _ in range(2)]
        teacher, old = (model.gather(1, ids.clamp(min=0)).tolist() for model in models)
        made += with_streams(
            [sample],
            teacher_topk_ids=lambda _, ids=ids: map(tuple, ids.tolist()),
            teacher_topk_logprobs=lambda _, rows=teacher: map(tuple, rows),
            rollout_topk_logprobs=lambda _, rows=old: map(tuple, rows),
        )
    return made


LOSSES = {"topk": OPD / "custom_loss_topk.py", "select": COMBINE / "custom_loss_select.py"}


@pytest.mark.parametrize("name", LOSSES)
def test_packing_cannot_change_losses_over_k_ids(policy_dir: Path, name: str) -> None:
    batch = batch_of(with_top_ids(random_samples(6), k=5))
    whole, packed = (
        gradients_of(learner(policy_dir, LOSSES[name], teacher={"teacher_top_k": 5}, max_tokens_per_gpu=tokens), batch)
        for tokens in (8192, 30)
    )
    assert relative_difference(packed, whole) < 1e-5


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_that_no_teacher_read_trains_without_one(policy_dir: Path, name: str) -> None:
    samples = [dataclasses.replace(s, streams={**s.streams}) for s in random_samples(4)]
    trainer = learner(policy_dir, LOSSES[name], teacher={"teacher_top_k": 5})
    metrics = trainer.train(batch_of(samples)).metrics
    assert metrics["loss/opd"] == 0.0


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_over_k_ids_needs_a_k(policy_dir: Path, name: str) -> None:
    with pytest.raises(PluginError, match="set --teacher-top-k"):
        learner(policy_dir, LOSSES[name]).train(batch_of(with_top_ids(random_samples(2), k=5)))


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl"])
def test_over_all_ids_the_loss_is_the_dense_divergence_with_its_gradient(policy_dir: Path, kind: str) -> None:
    """Against logits of the model as slime's losses see them, torch's own KL, in float64."""
    generator = torch.Generator().manual_seed(5)
    [sample] = random_samples(1, seed=5)
    length = len(sample.token_ids)
    first = sample.streams["loss_mask"].index(1)
    teacher = torch.log_softmax(torch.randn(length, VOCAB_SIZE, generator=generator), -1)
    sample = with_streams(
        [dataclasses.replace(sample, values={"reward": 1.0, "temperature": 1.0})],
        loss_mask=lambda s: [int(i >= first) for i in range(length)],
        has_teacher=lambda s: (1,) * length,
        teacher_topk_ids=lambda s: [tuple(range(VOCAB_SIZE - 1))] * length,
        teacher_topk_logprobs=lambda s: map(tuple, teacher[:, :-1].tolist()),
    )[0]

    def dense(args, batch, logits, sum_of_sample_mean):
        policy = torch.log_softmax(logits[0, first - 1 : length - 1].double(), -1)
        left, right = (policy, teacher[first:].double())
        if kind == "forward_kl":
            left, right = right, left
        divergence = torch.nn.functional.kl_div(right, left, reduction="none", log_target=True).sum(-1)
        return sum_of_sample_mean(divergence.float())

    loss = {"kl_loss_coef": 0.0, "teacher_divergence": kind}
    ours = learner(policy_dir, LOSSES["topk"], teacher={"teacher_top_k": VOCAB_SIZE - 1}, loss=loss)
    exact = trainer_of(policy_dir, loss=loss, loss_fn=hook(dense))
    batch = batch_of([sample])
    assert relative_difference(gradients_of(ours, batch), gradients_of(exact, batch)) < 1e-4
