"""Generates random batches for a trainer: groups of replies with rewards, and teacher log-probs for distillation."""

from __future__ import annotations

import random

from slime.types import Batch, Sample, SampleGroup


def random_batch(
    vocab_size: int, num_groups: int, group_size: int, length: int, *, seed: int = 0, top_k: int = 0
) -> Batch:
    """`num_groups` × `group_size` samples of `length` tokens, the first half of each being the prompt.

    Rewards differ within every group and between groups, so that each estimator has something to learn.
    """
    rng = random.Random(seed)
    groups = []
    for group in range(num_groups):
        members = []
        for member in range(group_size):
            prompt, reply = length // 2, length - length // 2
            sampled = [rng.uniform(-8.0, -6.0) for _ in range(reply)]
            streams: dict[str, tuple[object, ...]] = {
                "loss_mask": (0,) * prompt + (1,) * reply,
                "rollout_logprobs": (0.0,) * prompt + tuple(sampled),
                "policy_versions": (0,) * length,
                "turn_index": (-1,) * prompt + (0,) * reply,
                "teacher_logprobs": (0.0,) * prompt + tuple(value + rng.uniform(-1, 1) for value in sampled),
                "has_teacher": (0,) * prompt + (1,) * reply,
            }
            if top_k:
                ids = [tuple(rng.sample(range(vocab_size), top_k)) for _ in range(length)]
                streams["teacher_topk_ids"] = tuple(ids)
                for name in ("teacher_topk_logprobs", "rollout_topk_logprobs"):
                    streams[name] = tuple(tuple(rng.uniform(-8, -6) for _ in row) for row in ids)
            members.append(
                Sample(
                    tuple(rng.randrange(3, vocab_size) for _ in range(length)),
                    streams,
                    {"reward": (1.0, -1.0, 0.5, 0.0)[(member + group) % 4], "temperature": 1.0},
                    (f"t{group}-{member}",),
                    trajectory_id=f"s{group}-{member}",
                )
            )
        groups.append(SampleGroup(f"g{group}", tuple(members)))
    return Batch(tuple(groups))
