"""Distillation's loss: a token's advantage is the teacher's log-prob minus the policy's at sampling.

python slime/train.py --custom-loss-function-path openclaw-opd/custom_loss.py …
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
    policy_objective: Objective,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    config: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate toward the teacher, KL to the reference and entropy bonus; tensors are [N] over the trainable
    tokens; teacher and rollout are compared at temperature 1. The metric `train/opd_reverse_kl` estimates
    KL(π_rollout ‖ π_T), the remaining gap to the teacher."""
    toward_teacher = distillation_advantage(
        teacher_logprobs, untempered_rollout_logprobs, has_teacher, config["teacher_gap_clip"]
    )
    loss, metrics = policy_objective(config["w_opd"] * toward_teacher)
    return loss, {
        **metrics,
        "loss/opd": metrics["loss/policy"],
        "train/opd_reverse_kl": -sum_of_sample_mean(toward_teacher),
    }
