"""Distillation's rollout: every turn whose next state holds a hint, scored by a teacher that has read it.

python slime/train.py --rollout-function-path openclaw-opd/custom_rollout.py …
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
    """Groups of one sample, as replies are scored; turns without a hint or a teacher are left out."""
    groups = taught_samples(
        store,
        HintingJudge(judge, hint_source, config.teacher.hint_selection),
        teacher,
        owner=owner,
        policy_version=policy_version,
        rollout=config.rollout,
        judging=config.judge,
        streams_of=topk_streams if config.teacher.teacher_top_k else teacher_streams,
        needs_teacher=True,
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
    }
