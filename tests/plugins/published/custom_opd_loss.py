"""The distillation loss of the second published page, in our words; its mask and clip have the published names."""

import torch
import torch.nn.functional as F  # noqa: F401  (the published file imports it and uses it nowhere)


def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    ratio = torch.exp(student_logprobs - teacher_logprobs)
    narrow = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)
    toward_teacher = teacher_logprobs - student_logprobs
    worst = torch.max(-toward_teacher * ratio, -toward_teacher * narrow)
    return (worst * advantage_mask).sum() / advantage_mask.sum()
