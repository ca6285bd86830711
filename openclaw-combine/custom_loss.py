"""Combine's loss: a token's advantage is the weighted sum of its turn's score and the teacher's log-prob gap.

python slime/train.py --custom-loss-function-path openclaw-combine/custom_loss.py …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slime.algorithms.distillation import distillation_advantage
from slime.algorithms.objective import Objective
from torch import Tensor


def compute_loss(
    untempered_rollout_logprobs: Tensor,
    teacher_logprobs: Tensor,
    has_teacher: Tensor,
    advantages: Tensor,
    policy_objective: Objective,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    config: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate of w_rl·A_rl + w_opd·(ℓ_T − ℓ_rollout), KL to the reference and entropy bonus; tensors are [N]
    over the trainable tokens; teacher and rollout are compared at temperature 1. `loss/binary` and `loss/opd` are the
    two parts' losses at a ratio of 1."""
    from_reward = config["w_rl"] * advantages
    from_teacher = config["w_opd"] * distillation_advantage(
        teacher_logprobs, untempered_rollout_logprobs, has_teacher, config["teacher_gap_clip"]
    )
    loss, metrics = policy_objective(from_reward + from_teacher)
    parts = {"loss/binary": -sum_of_sample_mean(from_reward), "loss/opd": -sum_of_sample_mean(from_teacher)}
    return loss, {**metrics, **parts, "train/taught_fraction": sum_of_sample_mean(has_teacher.float())}
