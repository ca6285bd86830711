"""Binary RL's loss: a token's advantage is its turn's score minus the baseline of its source.

python slime/train.py --custom-loss-function-path openclaw-rl/custom_loss.py …
"""

from __future__ import annotations

from slime.algorithms.objective import Objective
from torch import Tensor


def compute_loss(advantages: Tensor, policy_objective: Objective) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate, KL to the reference and entropy bonus; advantages are over the trainable tokens, [N]."""
    loss, metrics = policy_objective(advantages)
    return loss, {**metrics, "loss/binary": metrics["loss/policy"]}
