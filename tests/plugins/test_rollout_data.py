"""Hooks on a batch change what is trained, and nothing else of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from slime.compat.rollout_data import BatchHooks
from slime.config.sections import PluginConfig
from slime.errors import PluginError
from slime.types import Batch, Sample, SampleGroup


def sample(reward: float, mask: tuple[int, ...]) -> Sample:
    n = len(mask)
    streams = {"loss_mask": mask, "rollout_logprobs": tuple(-0.1 * i for i in range(n)), "rewards": (reward,) * n}
    return Sample(tuple(range(10, 10 + n)), streams, {"reward": reward}, (f"t{n}",), source="ada")


BATCH = Batch(
    (
        SampleGroup("a", (sample(1.0, (0, 0, 1, 0, 1)), sample(-1.0, (0, 1, 1)))),
        SampleGroup("b", (sample(0.5, (0, 1, 0, 0)),)),
    )
)


def plugin(directory: Path, source: str) -> str:
    (directory / "batch.py").write_text(source)
    return str(directory / "batch.py")


async def test_advantages_and_masks_as_slimes_hooks_set_them(tmp_path):
    source = """
import torch

def compute_advantages(args, rollout_data):
    assert args.gamma == 0.5
    rewards = torch.tensor(rollout_data["rewards"])
    rollout_data["advantages"] = [
        (reward - rewards.mean()) * torch.ones(length)
        for reward, length in zip(rewards, rollout_data["response_lengths"])
    ]
    rollout_data["returns"] = rollout_data["advantages"]

def postprocess(args, rollout_id, rollout_data):
    assert rollout_id == 7
    rollout_data["loss_masks"][0][0] = 0
"""
    file = plugin(tmp_path, source)
    config = PluginConfig(custom_advantage_function_path=file, rollout_data_postprocess_path=f"{file}:postprocess")
    batch = await BatchHooks(config, {"gamma": 0.5}).apply(BATCH, 7)
    mean = (1.0 - 1.0 + 0.5) / 3
    first, second, third = batch.samples
    assert first.streams["advantages"] == pytest.approx((0, 0, 1 - mean, 1 - mean, 1 - mean))
    assert second.streams["advantages"] == pytest.approx((0, -1 - mean, -1 - mean))
    assert third.streams["advantages"] == pytest.approx((0, 0.5 - mean, 0, 0))
    assert first.streams["loss_mask"] == (0, 0, 0, 0, 1)
    assert [group.group_id for group in batch.groups] == ["a", "b"]
    assert batch.turn_ids == BATCH.turn_ids
    assert first.token_ids == BATCH.samples[0].token_ids
    assert first.streams["rollout_logprobs"] == BATCH.samples[0].streams["rollout_logprobs"]


async def test_without_hooks_a_batch_is_left_as_it_is():
    assert await BatchHooks(PluginConfig(), {}).apply(BATCH, 0) is BATCH


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("pass", r'did not set rollout_data\["advantages"\]'),
        ("rollout_data['advantages'] = [[1.0]]", "has 1 entries for 3 samples"),
        ("rollout_data['advantages'] = [[1.0]] * 3", "has 1 entries for a response of 3 tokens"),
        ("raise OSError('gone')", "batch.py:compute_advantages: OSError: gone"),
        ("import time; time.sleep(3)", "took longer than --hook-timeout-s 1"),
    ],
)
async def test_what_a_hook_must_not_do(tmp_path, body, words):
    file = plugin(tmp_path, f"def compute_advantages(rollout_data):\n    {body}\n")
    hooks = BatchHooks(PluginConfig(custom_advantage_function_path=file, hook_timeout_s=1.0), {})
    with pytest.raises(PluginError, match=words):
        await hooks.apply(BATCH, 0)
