"""Combine's rollout: samples every turn whose next state has a score, a hint, or both.

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
    """Groups of one sample, as turns are judged; a missing hint or score has weight 0."""
    return taught_samples(ctx, hint_source, teacher, topk_streams=topk_streams, needs_teacher=False)


def topk_streams(top: TopIds) -> Streams:
    """The sample fields of this method's top-k loss, with --teacher-top-k."""
    return {
        "teacher_topk_ids": top.ids,
        "teacher_topk_logprobs": top.teacher_logprobs,
        "rollout_topk_logprobs": top.policy_logprobs,
    }
