"""The hybrid loss of the second published page, in our words. It calls `compute_gae`, which it does not define."""

import torch


def compute_hybrid_loss(
    student_logprobs, teacher_logprobs, scalar_rewards, opd_weight=0.5, binary_weight=0.5, clip_ratio=0.2
):
    by_score = compute_gae(scalar_rewards)  # noqa: F821
    ratio = torch.exp(student_logprobs - student_logprobs.detach())
    plain = -by_score * ratio
    narrow = -by_score * torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)
    binary = torch.max(plain, narrow).mean()
    distilled = -(teacher_logprobs - student_logprobs).mean()
    total = binary_weight * binary + opd_weight * distilled
    return total, {"binary_loss": binary.item(), "opd_loss": distilled.item(), "total_loss": total.item()}
