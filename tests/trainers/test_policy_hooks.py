"""Hooks inside the policy loss, in the real trainer: they are given slime's layout, and packing cannot change them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import ROOT, batch_of, gradients_of, random_samples, relative_difference
from slime.config.sections import LossConfig, TrainerConfig
from slime.errors import PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import PG_REDUCER, TIS
from slime.plugins.losses import load_loss
from slime.trainers.policy_hooks import PolicyLossHooks
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Sample


def trainer_of(model_dir: Path, *, weigh: Any = None, reduce: Any = None, **settings: Any) -> TorchTrainer:
    """Binary RL with decoupled PPO's ratio, two steps a batch, and functions in the place of parts of its loss."""
    loss = settings.pop("loss", {})
    return TorchTrainer(
        model_dir,
        TrainerConfig(**{"lr": 1e-4, "num_steps_per_rollout": 2, **settings}),
        LossConfig(**{"behaviour_correction": "decoupled", "kl_loss_coef": 0.0, **loss}),
        loss_fn=load_loss(str(ROOT / "openclaw-rl" / "custom_loss.py")),
        device="cpu",
        hooks=PolicyLossHooks(
            weigh and NamedCall.match(weigh, TIS.names), reduce and NamedCall.match(reduce, PG_REDUCER.names)
        ),
    )


def alone(number: int = 6) -> list[Sample]:
    """Samples that are trajectories of their own."""
    return [dataclasses.replace(s, trajectory_id=f"session {i}") for i, s in enumerate(random_samples(number))]


def ours(*, args, pg_loss, train_log_probs, rollout_log_probs, loss_masks):
    """What `decoupled` does, in slime's words."""
    ratio = torch.exp(torch.cat(train_log_probs) - torch.cat(rollout_log_probs))
    return pg_loss * ratio.clamp(args.tis_clip_low, args.tis_clip), loss_masks, {"ois": ratio}


def mean_of_each(response_lengths, loss_masks, calculate_per_token_loss):
    """What `sum_of_sample_mean` does where every sample is a trajectory."""

    def reduce(losses):
        pairs = zip(losses.split(response_lengths), loss_masks, strict=True)
        return sum((part * mask).sum() / (1 if calculate_per_token_loss else mask.sum()) for part, mask in pairs)

    return reduce


@pytest.mark.parametrize("per_token", [False, True])
def test_hooks_that_do_what_we_do_change_no_gradient(policy_dir: Path, per_token: bool) -> None:
    batch, loss = batch_of(alone()), {"calculate_per_token_loss": per_token}
    plain, hooked = (
        trainer_of(policy_dir, loss=loss),
        trainer_of(policy_dir, weigh=ours, reduce=mean_of_each, loss=loss),
    )
    assert relative_difference(gradients_of(hooked, batch), gradients_of(plain, batch)) < 1e-5
    first, second = plain.train(batch).metrics, hooked.train(batch).metrics
    assert second["loss/policy"] == pytest.approx(first["loss/policy"], rel=1e-3, abs=1e-6)
    assert second["train/ois"] > 0


def test_packing_cannot_change_what_hooks_normalise(policy_dir: Path) -> None:
    """Both take means over all that they are given, which in slime is a micro-batch."""

    def normalised(pg_loss, train_log_probs, rollout_log_probs, loss_masks):
        ratio = torch.exp(torch.cat(train_log_probs) - torch.cat(rollout_log_probs))
        return pg_loss * ratio / ratio.mean(), loss_masks, {}

    batch = batch_of(random_samples(6))
    whole, packed = (
        gradients_of(
            trainer_of(
                policy_dir,
                weigh=normalised,
                reduce=lambda: torch.mean,
                num_steps_per_rollout=1,
                max_tokens_per_gpu=tokens,
            ),
            batch,
        )
        for tokens in (8192, 1)
    )
    assert relative_difference(packed, whole) < 1e-5
    assert any(bool(gradient.any()) for gradient in whole.values())


def test_they_are_given_slimes_layout_of_one_sample(policy_dir: Path) -> None:
    samples = alone(3)
    seen: list[dict[str, Any]] = []

    def watch(pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths):
        seen.append({name: value for name, value in locals().items() if name != "pg_loss"} | {"size": len(pg_loss)})
        return pg_loss, loss_masks, {}

    trainer_of(policy_dir, weigh=watch, num_steps_per_rollout=1).train(batch_of(samples))
    assert len(seen) == 3
    for sample in samples:
        mask = sample.streams["loss_mask"]
        trained = [i for i, flag in enumerate(mask) if flag]
        response = slice(trained[0], trained[-1] + 1)
        (found,) = [
            one
            for one in seen
            if one["total_lengths"] == [response.stop] and one["size"] == response.stop - response.start
        ]
        assert found["response_lengths"] == [found["size"]]
        assert found["loss_masks"][0].tolist() == list(mask[response])
        logprobs = [lp if flag else 0 for lp, flag in zip(sample.streams["rollout_logprobs"], mask, strict=True)]
        assert found["rollout_log_probs"][0].tolist() == pytest.approx(logprobs[response])
        assert not found["train_log_probs"][0].requires_grad


def test_a_masked_sample_leaves_the_numerator_only(policy_dir: Path) -> None:
    """Leaving out a sample by mask, and it alone, add up to the whole: what is divided by stays the same."""
    samples = alone(4)
    lengths = {sum(s.streams["loss_mask"]) for s in samples[:2]}

    def keep(is_first: bool):
        def weigh(pg_loss, loss_masks):
            inside = int(loss_masks[0].sum()) in lengths
            return pg_loss, [mask * (inside is is_first) for mask in loss_masks], {}

        return weigh

    def losses(weigh: Any) -> float:
        trainer = trainer_of(policy_dir, weigh=weigh, num_steps_per_rollout=1)
        return trainer.train(batch_of(samples)).metrics["loss/policy"]

    first, second = losses(keep(True)), losses(keep(False))
    whole = losses(lambda pg_loss, loss_masks: (pg_loss, loss_masks, {}))
    assert first + second == pytest.approx(whole, rel=1e-5)
    assert abs(first) > 1e-4 < abs(second)


def test_a_hook_that_fails_leaves_the_trainer_as_it_was(policy_dir: Path) -> None:
    def broken(pg_loss, loss_masks):
        raise KeyError("what")

    trainer = trainer_of(policy_dir, weigh=broken)
    with pytest.raises(PluginError, match=r"test_policy_hooks\.py:.*broken: KeyError: 'what'"):
        trainer.train(batch_of(alone(2)))
    assert trainer.step == 0
