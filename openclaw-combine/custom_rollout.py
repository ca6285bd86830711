"""Combine's rollout: every turn whose next state says how good the reply was, or holds a hint, or both.

python slime/train.py --rollout-function-path openclaw-combine/custom_rollout.py …
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from slime.config import Config
from slime.judging.hindsight.hints import HintingJudge, HintSource
from slime.judging.hindsight.teacher import Lesson, Teacher
from slime.protocols import Judge
from slime.rollout.hindsight import Streams, taught_samples, teacher_streams
from slime.store import Store
from slime.types import SampleGroup


async def generate_rollout(
    store: Store,
    judge: Judge,
    hint_source: HintSource,
    teacher: Teacher,
    owner: str,
    policy_version: Callable[[], int],
    config: Config,
) -> AsyncIterator[SampleGroup]:
    """Groups of one sample, as turns are judged; what a turn lacks, hint or score, weighs nothing."""
    groups = taught_samples(
        store,
        HintingJudge(judge, hint_source, config.teacher.hint_selection),
        teacher,
        owner=owner,
        policy_version=policy_version,
        rollout=config.rollout,
        judging=config.judge,
        streams_of=topk_streams if config.teacher.teacher_top_k else teacher_streams,
        needs_teacher=False,
    )
    async for group in groups:
        yield group


def topk_streams(lesson: Lesson) -> Streams:
    """The teacher's opinion of the sampled tokens, and of the k ids beside each."""
    assert lesson.top is not None  # a k was asked for
    return {
        **teacher_streams(lesson),
        "teacher_topk_ids": lesson.top.ids,
        "teacher_topk_logprobs": lesson.top.teacher_logprobs,
        "rollout_topk_logprobs": lesson.top.policy_logprobs,
    }
