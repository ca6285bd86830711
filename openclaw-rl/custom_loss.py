"""Binary RL's loss: the advantage of a token is its turn's score, less what its source is usually worth.

python slime/train.py --custom-loss-function-path openclaw-rl/custom_loss.py …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slime.algorithms.objective import PolicyHooks, policy_objective
from torch import Tensor


def compute_loss(
    policy_logprobs: Tensor,
    rollout_logprobs: Tensor,
    proximal_logprobs: Tensor,
    reference_logprobs: Tensor,
    advantages: Tensor,
    sequence_index: Tensor,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
    compute_full_kl: Callable[[], Tensor],
    compute_entropy: Callable[[], Tensor],
    policy_hooks: PolicyHooks,
    config: Mapping[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate, KL to the reference and entropy bonus; tensors are over the trainable tokens, [N]."""
    return policy_objective(
        policy_logprobs,
        rollout_logprobs,
        reference_logprobs,
        advantages,
        mean=sum_of_sample_mean,
        config=config,
        compute_full_kl=compute_full_kl,
        compute_entropy=compute_entropy,
        proximal_logprobs=proximal_logprobs,
        sequence_index=sequence_index,
        hooks=policy_hooks,
    )
