"""Combine's loss: the advantage of a token is what its turn's score says of it, and what the teacher says.

python slime/train.py --custom-loss-function-path openclaw-combine/custom_loss.py …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slime.algorithms.distillation import distillation_advantage
from slime.algorithms.objective import PolicyHooks, policy_objective
from torch import Tensor


def compute_loss(
    policy_logprobs: Tensor,
    rollout_logprobs: Tensor,
    proximal_logprobs: Tensor,
    reference_logprobs: Tensor,
    teacher_logprobs: Tensor,
    has_teacher: Tensor,
    advantages: Tensor,
    sequence_index: Tensor,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    compute_full_kl: Callable[[], Tensor],
    compute_entropy: Callable[[], Tensor],
    policy_hooks: PolicyHooks,
    config: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate of w_rl·A_rl + w_opd·(ℓ_T − ℓ_rollout), KL to the reference and entropy bonus; tensors are [N]
    over the trainable tokens. `loss/binary` and `loss/opd` are what either part says of the batch as it was sampled."""
    from_reward = config["w_rl"] * advantages
    from_teacher = config["w_opd"] * distillation_advantage(teacher_logprobs, rollout_logprobs, has_teacher)
    loss, metrics = policy_objective(
        policy_logprobs,
        rollout_logprobs,
        reference_logprobs,
        from_reward + from_teacher,
        mean=sum_of_sample_mean,
        config=config,
        compute_full_kl=compute_full_kl,
        compute_entropy=compute_entropy,
        proximal_logprobs=proximal_logprobs,
        sequence_index=sequence_index,
        hooks=policy_hooks,
    )
    parts = {"loss/binary": -sum_of_sample_mean(from_reward), "loss/opd": -sum_of_sample_mean(from_teacher)}
    return loss, {**metrics, **parts, "train/taught_fraction": sum_of_sample_mean(has_teacher.float())}
