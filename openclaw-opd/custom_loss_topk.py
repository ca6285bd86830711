"""Distillation's top-k loss: the divergence of policy and teacher over k ids per token, the other ids as one tail.

python slime/train.py --custom-loss-function-path openclaw-opd/custom_loss_topk.py --teacher-top-k 50 …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from slime.algorithms.distillation import binned_divergence
from slime.algorithms.objective import Objective
from slime.errors import PluginError
from torch import Tensor


def compute_loss(
    rollout_logprobs: Tensor,
    has_teacher: Tensor,
    teacher_topk_ids: Tensor,
    teacher_topk_logprobs: Tensor,
    policy_topk_and_tail_logprobs: Callable[..., tuple[Tensor, Tensor]],
    policy_objective: Objective,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    config: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """w_opd · D(π, π_T), KL to the reference and entropy bonus; ids and the teacher's log-probs are [N, k].

    Both distributions are at temperature 1, whatever the sampling temperature.

    Raises:
        PluginError: `--teacher-top-k` is not set.
    """
    if not config["teacher_top_k"]:
        raise PluginError("openclaw-opd/custom_loss_topk.py compares k ids per token: set --teacher-top-k, e.g. 50")
    # zero advantages: only the regularisers, no policy gradient on the sampled token
    regularisers, metrics = policy_objective(torch.zeros_like(rollout_logprobs))
    support = (teacher_topk_ids >= 0) & has_teacher[:, None]
    policy, tail = policy_topk_and_tail_logprobs(teacher_topk_ids, temperature=1.0)
    divergence = binned_divergence(policy, teacher_topk_logprobs, support, config["teacher_divergence"], tail)
    distillation = config["w_opd"] * sum_of_sample_mean(divergence)
    return distillation + regularisers, {**metrics, "loss/opd": distillation.detach()}
