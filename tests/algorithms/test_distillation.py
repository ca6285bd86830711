"""Distillation terms against sums by hand and against the whole distributions in float64."""

from __future__ import annotations

import math

import pytest
import torch
from slime.algorithms.distillation import binned_divergence, distillation_advantage, item_surrogate, with_tail
from slime.trainers.token_head import TokenHead

KINDS = ("reverse_kl", "forward_kl", "js")


def random_logprobs(num_tokens: int, vocab_size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(2 * torch.randn(num_tokens, vocab_size, generator=generator, dtype=torch.float64), dim=-1)


def dense(policy: torch.Tensor, teacher: torch.Tensor, kind: str) -> torch.Tensor:
    """The divergence of whole distributions, by torch's own KL."""

    def kl(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.kl_div(right, left, reduction="none", log_target=True).sum(-1)

    if kind == "reverse_kl":
        return kl(policy, teacher)
    if kind == "forward_kl":
        return kl(teacher, policy)
    mixture = (0.5 * (policy.exp() + teacher.exp())).log()
    return 0.5 * (kl(policy, mixture) + kl(teacher, mixture))


def test_a_token_without_a_teacher_has_exactly_no_advantage():
    advantages = distillation_advantage(
        torch.tensor([-0.5, math.nan, -1.0, 0.0, -3.0]),
        torch.tensor([-1.0, -2.0, -1.0, -7.0, -1.0]),
        torch.tensor([1, 0, 1, 0, 1]),
    )
    assert advantages.tolist() == [0.5, 0.0, 0.0, 0.0, -2.0]


def test_the_tail_is_what_the_support_leaves():
    bins = with_tail(torch.tensor([[0.6, 0.3], [0.6, 0.3]]).log(), torch.tensor([[True, True], [False, True]]))
    assert bins[0].exp().tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-6)
    assert bins[1].tolist() == pytest.approx([0.0, math.log(0.3), math.log(0.7)], abs=1e-6)
    certain = with_tail(torch.tensor([[0.0]]), torch.tensor([[True]]))
    assert torch.isfinite(certain).all()


@pytest.mark.parametrize("kind", KINDS)
def test_five_tokens_by_hand(kind: str):
    policy = [(0.5, 0.2), (0.9, 0.05), (0.1, 0.1), (0.3, 0.6), (0.25, 0.25)]
    teacher = [(0.25, 0.5), (0.9, 0.05), (0.6, 0.3), (0.2, 0.2), (0.01, 0.9)]
    expected = []
    for p, q in zip(policy, teacher, strict=True):
        p, q = (*p, 1 - sum(p)), (*q, 1 - sum(q))
        reverse = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        forward = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
        js = sum((a * math.log(2 * a / (a + b)) + b * math.log(2 * b / (a + b))) / 2 for a, b in zip(p, q, strict=True))
        expected.append({"reverse_kl": reverse, "forward_kl": forward, "js": js}[kind])
    got = binned_divergence(
        torch.tensor(policy, dtype=torch.float64).log(),
        torch.tensor(teacher, dtype=torch.float64).log(),
        torch.ones(5, 2, dtype=torch.bool),
        kind,  # type: ignore[arg-type]
    )
    assert got.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_over_the_whole_vocabulary_it_is_the_dense_divergence_and_so_is_its_gradient(kind: str):
    logits = random_logprobs(6, 11, seed=1).requires_grad_()
    teacher = random_logprobs(6, 11, seed=2)
    everything = torch.ones(6, 10, dtype=torch.bool)  # the eleventh id is the tail
    policy = torch.log_softmax(logits, dim=-1)
    ours = binned_divergence(policy[:, :10], teacher[:, :10], everything, kind)  # type: ignore[arg-type]
    exact = dense(policy, teacher, kind)
    assert torch.allclose(ours, exact, atol=1e-9)
    [ours_grad] = torch.autograd.grad(ours.sum(), logits, retain_graph=True)
    [exact_grad] = torch.autograd.grad(exact.sum(), logits)
    assert torch.allclose(ours_grad, exact_grad, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_bins_never_exaggerate_and_what_is_outside_the_support_is_not_read(kind: str):
    policy, teacher = random_logprobs(8, 20, seed=3), random_logprobs(8, 20, seed=4)
    support = torch.rand(8, 5, generator=torch.Generator().manual_seed(5)) < 0.6
    outside = torch.where(support, teacher[:, :5], torch.tensor(-math.inf, dtype=torch.float64))
    leaf = policy[:, :5].clone().requires_grad_()
    got = binned_divergence(leaf, outside, support, kind)  # type: ignore[arg-type]
    assert (got >= -1e-12).all()
    assert (got <= dense(policy, teacher, kind) + 1e-12).all()
    [gradient] = torch.autograd.grad(got.sum(), leaf)
    assert torch.isfinite(gradient).all()
    assert (gradient[~support] == 0).all()
    assert binned_divergence(policy[:, :5], policy[:, :5], support, kind).abs().max() < 1e-15  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_nearly_certain_policy_has_the_exact_gradient(kind: str):
    """A gap of 20 between logits: in float32 nothing is left of 1 − p, and everything of the tail's own logits."""
    logits = torch.tensor([[20.0, 0.0, 0.0]], requires_grad=True)
    teacher = torch.tensor([[0.3, 0.35, 0.35]]).log()
    head = TokenHead(logits, lambda hidden: hidden, torch.ones(1), 3)
    policy, tail = head.topk_and_tail_logprobs(torch.tensor([[0]]))
    ours = binned_divergence(policy, teacher[:, :1], torch.tensor([[True]]), kind, tail)  # type: ignore[arg-type]
    [gradient] = torch.autograd.grad(ours.sum(), logits)
    wide = logits.detach().double().requires_grad_()
    [exact] = torch.autograd.grad(dense(torch.log_softmax(wide, -1), teacher.double(), kind).sum(), wide)
    assert gradient[0].tolist() == pytest.approx(exact[0].tolist(), rel=1e-4, abs=1e-7)


def test_without_its_tail_a_certain_policy_still_has_a_gradient():
    leaf = torch.zeros(1, 1, requires_grad=True)  # log 1
    got = binned_divergence(leaf, torch.tensor([[0.3]]).log(), torch.tensor([[True]]), "forward_kl")
    [gradient] = torch.autograd.grad(got.sum(), leaf)
    assert gradient.item() > 1e5


def test_a_token_without_a_support_is_no_divergence():
    tail = torch.tensor([-3.0], requires_grad=True)
    got = binned_divergence(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool), policy_tail=tail)
    [gradient] = torch.autograd.grad(got.sum(), tail)
    assert (got.item(), gradient.item()) == (0.0, 0.0)


def test_a_teacher_that_finds_a_token_impossible_is_held():
    gap = distillation_advantage(torch.tensor([-30.0]), torch.tensor([-1.0]), torch.tensor([True]), clip=10.0)
    assert gap.item() == -10.0


def test_the_surrogate_of_items_by_hand():
    old, teacher, now = (0.6, 0.2, 0.1), (0.3, 0.4, 0.1), (0.6, 0.3, 0.2)
    support = torch.tensor([[True, True, False]])
    loss, clipped = item_surrogate(
        *(torch.tensor([p], dtype=torch.float64).log() for p in (now, old, teacher)),
        support,
        clip=0.5,
        eps_clip=0.2,
        eps_clip_high=0.28,
    )
    weights = (0.75, 0.25)  # of 0.6 and 0.2 among themselves
    differences = (-0.5, 0.5)  # log ½ and log 2, held within ±0.5
    ratios = (1.0, 1.28)  # 1.5 is more than the clip lets through
    expected = -sum(w * d * r for w, d, r in zip(weights, differences, ratios, strict=True))
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    assert clipped.item() == 0.5


def test_the_surrogate_of_items_pulls_toward_the_teacher_and_leaves_empty_rows_alone():
    logits = random_logprobs(3, 6, seed=6).requires_grad_()
    teacher, old = random_logprobs(3, 6, seed=7), logits.detach().clone()
    support = torch.ones(3, 6, dtype=torch.bool)
    support[2] = False
    loss, _ = item_surrogate(
        torch.log_softmax(logits, -1), old, teacher, support, clip=1.0, eps_clip=0.2, eps_clip_high=0.28
    )
    assert loss[2] == 0
    [gradient] = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(gradient).all()
    assert (gradient[2] == 0).all()
    step = torch.log_softmax(logits.detach() - 0.1 * gradient, -1)
    before, after = (dense(x, teacher, "reverse_kl")[:2] for x in (old, step))
    assert (after < before).all()
