"""The trainer computes what it should: transformers' log-probs, and one gradient however a batch is laid out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import slime.trainers.token_head as head_module
import torch
from learners import (
    batch_of,
    gradients_of,
    logprobs_of,
    parameters_of,
    random_samples,
    relative_difference,
    trainer_of,
    write_policy,
)
from slime.errors import WeightsError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook
from slime.types import Batch, Sample, SampleGroup
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, MambaConfig, MistralConfig, Qwen3NextConfig

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
MODELS = {
    "window shorter than the documents": MistralConfig(**SMALL, sliding_window=3),
    "learned positions, dropout": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=128),
    "soft caps": Gemma2Config(**SMALL, query_pre_attn_scalar=8),
    "state space": MambaConfig(vocab_size=61, hidden_size=32, num_hidden_layers=2, state_size=4),
    "linear attention, experts": Qwen3NextConfig(
        **SMALL,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
}


def spying_loss(seen: list[dict[str, torch.Tensor]]) -> LossHook:
    """A loss that keeps what it was given."""

    def compute_loss(policy_logprobs, sample_index, turn_index, advantages, rewards, sum_of_sample_mean, batch):
        seen.append(
            {
                "policy_logprobs": policy_logprobs.detach(),
                "sample_index": sample_index,
                "turn_index": turn_index,
                "advantages": advantages,
                "rewards": rewards,
                "unconcat_tokens": batch["unconcat_tokens"],
            }
        )
        return sum_of_sample_mean(-policy_logprobs * advantages)

    return LossHook(NamedCall.match(compute_loss, LOSS.names))


def check_logprobs(model_dir: Path, samples: list[Sample]) -> None:
    """Compare what a loss is given with transformers' own forward pass, one sample at a time."""
    seen: list[dict[str, torch.Tensor]] = []
    trainer_of(model_dir, loss_fn=spying_loss(seen), lr=0.0).train(batch_of(samples))
    (given,) = seen
    by_ids = {s.token_ids: s for s in samples}
    for index, ids in enumerate(given["unconcat_tokens"]):
        sample = next(s for s in by_ids.values() if s.token_ids[: len(ids)] == tuple(ids.tolist()))
        expected = logprobs_of(model_dir, sample.token_ids, sample.values["temperature"])
        mask = torch.tensor(sample.streams["loss_mask"][1:], dtype=torch.bool)
        got = given["policy_logprobs"][given["sample_index"] == index]
        torch.testing.assert_close(got, expected[mask], atol=1e-5, rtol=0)


def test_logprobs_are_transformers_own_at_each_samples_temperature(policy_dir: Path) -> None:
    check_logprobs(policy_dir, random_samples(9))


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_of_models_that_are_built_otherwise(name: str, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(MODELS[name], dtype=torch.float32)
        for parameter in model.parameters():
            parameter.data += 0.08 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    check_logprobs(tmp_path, random_samples(5))


def test_a_long_neighbour_does_not_change_how_a_short_documents_positions_are_scaled(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 16}
    scaling = {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 4.0, **factors}
    write_policy(tmp_path, max_position_embeddings=64, rope_parameters=scaling)
    samples = [s for s in random_samples(12) if len(s.token_ids) not in (17, 18)]  # not where one token more decides
    assert {len(s.token_ids) > 17 for s in samples} == {True, False}
    check_logprobs(tmp_path, samples)


def test_positions_that_are_scaled_by_what_was_fed_before_are_refused(tmp_path: Path) -> None:
    scaling = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    write_policy(tmp_path, max_position_embeddings=16, rope_parameters=scaling)
    with pytest.raises(WeightsError, match=r"RoPE of type dynamic .* set rope_type to yarn") as caught:
        trainer_of(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def gradient(policy_dir: Path) -> dict[str, torch.Tensor]:
    """Of nine samples in one micro-batch."""
    return gradients_of(trainer_of(policy_dir), batch_of(random_samples(9)))


@pytest.mark.parametrize("max_tokens", [1, 40, 90])
def test_packing_does_not_change_the_gradient(policy_dir: Path, gradient: dict, max_tokens: int) -> None:
    packed = gradients_of(trainer_of(policy_dir, max_tokens_per_gpu=max_tokens), batch_of(random_samples(9)))
    assert relative_difference(packed, gradient) < 1e-5


def test_order_does_not_change_the_gradient(policy_dir: Path, gradient: dict) -> None:
    turned = gradients_of(trainer_of(policy_dir, max_tokens_per_gpu=60), batch_of(random_samples(9)[::-1]))
    assert relative_difference(turned, gradient) < 1e-5


def test_recomputed_activations_do_not_change_the_gradient(policy_dir: Path, gradient: dict) -> None:
    recomputed = gradients_of(trainer_of(policy_dir, gradient_checkpointing=True), batch_of(random_samples(9)))
    assert relative_difference(recomputed, gradient) < 1e-5


def test_chunks_of_the_output_layer_do_not_change_the_gradient(policy_dir: Path, monkeypatch) -> None:
    settings = {"loss": {"kl_loss_type": "full", "entropy_coef": 0.1}}

    def after_a_step() -> dict[str, torch.Tensor]:
        trainer = trainer_of(policy_dir, **settings)
        trainer.train(batch_of(random_samples(4, seed=1)))  # away from the reference
        return gradients_of(trainer, batch_of(random_samples(9)))

    whole = after_a_step()
    monkeypatch.setattr(head_module, "CHUNK_ELEMENTS", 61 * 7)
    assert relative_difference(after_a_step(), whole) < 1e-5


def test_the_gradient_against_a_second_implementation_in_float64(policy_dir: Path, gradient: dict) -> None:
    """One sample at a time through transformers in float64, with the formulas written out."""
    model = AutoModelForCausalLM.from_pretrained(policy_dir, dtype=torch.float64)
    samples = random_samples(9)
    by_source: dict[str, dict[tuple, float]] = {}
    trainable: dict[str, int] = {}
    for sample in samples:
        key = (sample.trajectory_id, sample.values["reward"])
        by_source.setdefault(sample.source, {})[key] = sample.values["reward"]
        trainable[sample.trajectory_id] = trainable.get(sample.trajectory_id, 0) + sample.num_trainable_tokens
    for sample in samples:
        rewards = by_source[sample.source]
        key = (sample.trajectory_id, sample.values["reward"])
        others = [reward for other, reward in rewards.items() if other != key]
        advantage = rewards[key] - (sum(others) / len(others) if others else 0.0)
        ids = torch.tensor(sample.token_ids)
        logits = model(input_ids=ids[None]).logits[0, :-1] / sample.values["temperature"]
        logprobs = logits.log_softmax(-1).gather(-1, ids[1:, None]).squeeze(-1)
        mask = torch.tensor(sample.streams["loss_mask"][1:], dtype=torch.float64)
        behaviour = torch.tensor(sample.streams["rollout_logprobs"][1:], dtype=torch.float64)
        weight = (logprobs - behaviour).exp()
        is_free = torch.where(torch.tensor(advantage > 0), weight <= 1.28, weight >= 0.8)
        weight = weight.detach().clamp(max=2.0) * is_free  # truncated weight; none where the clip holds the token
        loss = -(mask * weight * advantage * logprobs).sum() / trainable[sample.trajectory_id] / len(trainable)
        loss.backward()  # the KL's gradient is zero here: policy and reference are the same
    expected = {name: p.grad.float() for name, p in model.named_parameters()}
    assert relative_difference(gradient, expected) < 1e-5


def test_a_stitched_session_has_the_gradient_of_its_turns_apart(policy_dir: Path) -> None:
    ids = tuple(range(10, 22))
    logprobs = tuple(-4.0 for _ in ids)
    spans = ((2, 4, 1.0), (6, 7, -1.0), (9, 12, 1.0))  # start, end, score of each reply

    def masked(turns: list[int], length: int) -> Sample:
        mask, rewards, index = [0] * length, [0.0] * length, [-1] * length
        for turn in turns:
            start, end, score = spans[turn]
            for position in range(start, end):
                mask[position], rewards[position], index[position] = 1, score, turn
        streams = {"loss_mask": mask, "rewards": rewards, "turn_index": index, "rollout_logprobs": logprobs[:length]}
        return Sample(ids[:length], streams, {"temperature": 1.0}, (), trajectory_id="session", source="ada")

    stitched = Batch((SampleGroup("g", (masked([0, 1, 2], 12),)),))
    apart = Batch((SampleGroup("g", (masked([0], 4), masked([1], 7), masked([2], 12))),))
    whole = gradients_of(trainer_of(policy_dir), stitched)
    assert relative_difference(gradients_of(trainer_of(policy_dir), apart), whole) < 1e-5


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl", "full"])
def test_kl_of_the_policy_to_itself_is_zero_and_then_is_not(policy_dir: Path, kind: str) -> None:
    trainer = trainer_of(policy_dir, loss={"kl_loss_type": kind})
    first, second = (trainer.train(batch_of(random_samples(9))).metrics["loss/kl"] for _ in range(2))
    assert first == 0.0
    assert second != 0.0


def test_the_full_kl_is_what_the_whole_distributions_say(policy_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_of(policy_dir, loss={"kl_loss_type": "full"})
    (sample,) = random_samples(1)
    trainer.train(batch_of([sample]))
    trainer.publish(tmp_path / "now")
    reported = trainer.train(batch_of([sample])).metrics["loss/kl"]
    p, q = (
        AutoModelForCausalLM.from_pretrained(d)(input_ids=torch.tensor(sample.token_ids)[None]).logits[0, :-1]
        / sample.values["temperature"]
        for d in (tmp_path / "now", policy_dir)
    )
    kl = (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)
    mask = torch.tensor(sample.streams["loss_mask"][1:], dtype=torch.bool)
    assert reported == pytest.approx(kl[mask].mean().item(), rel=1e-4)


@pytest.mark.parametrize("baseline", ["ema", "group"])
def test_equal_rewards_change_nothing(policy_dir: Path, baseline: str) -> None:
    samples = [dataclasses.replace(s, values={**s.values, "reward": 1.0}, source="ada") for s in random_samples(6)]
    trainer = trainer_of(policy_dir, loss={"kl_loss_coef": 0.0, "baseline": baseline})
    before = parameters_of(trainer)
    report = trainer.train(Batch((SampleGroup("g", tuple(samples)),)))
    assert report.skipped == "nothing to learn: the gradient is zero"
    assert report.metrics["loss/policy"] == 0.0
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())


def test_groups_of_uneven_size_are_centred_each_by_itself(policy_dir: Path) -> None:
    samples = [dataclasses.replace(s, trajectory_id="") for s in random_samples(5)]
    samples = [dataclasses.replace(s, values={**s.values, "reward": float(i)}) for i, s in enumerate(samples)]
    seen: list[dict[str, torch.Tensor]] = []
    trainer = trainer_of(policy_dir, loss={"baseline": "group"}, loss_fn=spying_loss(seen))
    trainer.train(Batch((SampleGroup("a", tuple(samples[:3])), SampleGroup("b", tuple(samples[3:])))))
    pairs = {(float(r), float(a)) for r, a in zip(seen[0]["rewards"], seen[0]["advantages"], strict=True)}
    assert pairs == {(0.0, -1.0), (1.0, 0.0), (2.0, 1.0), (3.0, -0.5), (4.0, 0.5)}


def test_a_sample_may_bring_advantages_of_its_own(policy_dir: Path) -> None:
    (sample,) = random_samples(1)
    own = tuple(0.25 for _ in sample.token_ids)
    seen: list[dict[str, torch.Tensor]] = []
    trainer = trainer_of(policy_dir, loss_fn=spying_loss(seen))
    trainer.train(batch_of([dataclasses.replace(sample, streams={**sample.streams, "advantages": own})]))
    assert set(seen[0]["advantages"].tolist()) == {0.25}


def test_an_untied_output_layer_trains_too(tmp_path: Path) -> None:
    model_dir = write_policy(tmp_path / "model", tie_word_embeddings=False)
    trainer = trainer_of(model_dir)
    before = parameters_of(trainer)
    trainer.train(batch_of(random_samples(4)))
    assert not torch.equal(parameters_of(trainer)["lm_head.weight"], before["lm_head.weight"])
