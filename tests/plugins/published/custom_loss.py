"""The loss of the first published page: same name, parameters and mathematics, in our words."""

from typing import Any

import torch


def compute_loss(
    policy_logits: torch.Tensor,
    reference_logits: torch.Tensor,
    rewards: torch.Tensor,
    advantages: torch.Tensor,
    config: dict[str, Any],
) -> torch.Tensor:
    gap = policy_logits - reference_logits
    ratio = gap.exp()
    width = config.get("clip_range", 0.2)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - width, 1 + width) * advantages)
    return -surrogate.mean() + config.get("kl_coeff", 0.01) * gap.mean()
