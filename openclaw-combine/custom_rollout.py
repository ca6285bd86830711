"""Combine's rollout: every turn whose next state says how good the reply was, or holds a hint, or both.

python slime/train.py --rollout-function-path openclaw-combine/custom_rollout.py …
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from slime.judging.hindsight.hints import HintSource
from slime.judging.hindsight.teacher import Teacher, TopIds
from slime.rollout.context import RolloutContext
from slime.rollout.hindsight import Streams, taught_samples
from slime.types import SampleGroup


def generate_rollout(ctx: RolloutContext, hint_source: HintSource, teacher: Teacher) -> AsyncGenerator[SampleGroup]:
    """Groups of one sample, as turns are judged; a missing hint or score weighs nothing."""
    return taught_samples(ctx, hint_source, teacher, topk_streams=topk_streams, needs_teacher=False)


def topk_streams(top: TopIds) -> Streams:
    """With --teacher-top-k: what this method's loss reads of the k ids beside each sampled token."""
    return {
        "teacher_topk_ids": top.ids,
        "teacher_topk_logprobs": top.teacher_logprobs,
        "rollout_topk_logprobs": top.policy_logprobs,
    }
