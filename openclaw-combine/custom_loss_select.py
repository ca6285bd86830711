"""Combine's top-k loss: the reward weighs the sampled token, the teacher each of the k likeliest ids.

python slime/train.py --custom-loss-function-path openclaw-combine/custom_loss_select.py --teacher-top-k 4
    --teacher-support student --hint-selection sequence_optimal …

The hybrid top-k selection of the OpenClaw-RL paper's second version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slime.algorithms.distillation import item_surrogate
from slime.algorithms.objective import Objective
from slime.errors import PluginError
from torch import Tensor


def compute_loss(
    advantages: Tensor,
    has_teacher: Tensor,
    teacher_topk_ids: Tensor,
    teacher_topk_logprobs: Tensor,
    rollout_topk_logprobs: Tensor,
    policy_topk_logprobs: Callable[..., Tensor],
    policy_objective: Objective,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    config: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate of w_rl·A_rl, w_opd times that of each id in the support, KL to the reference, entropy bonus.

    Log-probs of the ids, [N, k], are at temperature 1, whatever the sampling temperature.

    Raises:
        PluginError: `--teacher-top-k` is not set.
    """
    if not config["teacher_top_k"]:
        raise PluginError("openclaw-combine/custom_loss_select.py weighs k ids per token: set --teacher-top-k, e.g. 4")
    loss, metrics = policy_objective(config["w_rl"] * advantages)
    per_token, clipped = item_surrogate(
        policy_topk_logprobs(teacher_topk_ids, temperature=1.0),
        rollout_topk_logprobs,
        teacher_topk_logprobs,
        (teacher_topk_ids >= 0) & has_teacher[:, None],
        clip=config["teacher_advantage_clip"],
        eps_clip=config["eps_clip"],
        eps_clip_high=config["eps_clip_high"],
    )
    distillation = config["w_opd"] * sum_of_sample_mean(per_token)
    parts = {"loss/binary": metrics["loss/policy"], "loss/opd": distillation.detach()}
    return loss + distillation, {**metrics, **parts, "train/topk_clip_fraction": sum_of_sample_mean(clipped)}
