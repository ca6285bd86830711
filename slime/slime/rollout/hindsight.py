"""Samples that a teacher has read: what on-policy distillation, and its combination with a reward, train on.

    Turn, Verdict with hints ─ Teacher ─▶ Lesson ─ streams ─▶ Sample: teacher_logprobs, has_teacher, has_reward
                                  │
                                  └─▶ NoLesson ─▶ a sample with its reward alone, or none

    hint   reward    a method that needs its teacher   one that does not
    yes    yes       teacher                           teacher and reward
    yes    no        teacher                           teacher
    no     yes       nothing                           reward
    no     no        nothing                           nothing

A reward is a score, but for the 0 by which a judge of −1, 0 and 1 says that it has no opinion.
A teacher that failed counts as no hint: it drops its part of the turn, and nothing stands in for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from slime.config import Config, JudgeConfig, RolloutConfig
from slime.config.sections import LoraConfig
from slime.data.stitching import ScoredTurn
from slime.judging.hindsight.hints import HintSource, LlmHints
from slime.judging.hindsight.rule_hints import RuleHints
from slime.judging.hindsight.teacher import Lesson, NoLesson, Teacher
from slime.judging.llm.chat_model import ChatModel
from slime.protocols import Judge
from slime.rollout.live import NotTrained, finished_turns, group_of
from slime.store import Store
from slime.types import SampleGroup, Turn, Verdict

log = logging.getLogger(__name__)

Streams = Mapping[str, Sequence[Any]]


def teacher_streams(lesson: Lesson) -> Streams:
    """What every loss with a teacher reads, over the reply's tokens."""
    return {"teacher_logprobs": lesson.logprobs, "has_teacher": (1,) * len(lesson.logprobs)}


async def taught_samples(
    store: Store,
    judge: Judge,
    teacher: Teacher,
    *,
    owner: str,
    policy_version: Callable[[], int],
    rollout: RolloutConfig,
    judging: JudgeConfig,
    needs_teacher: bool,
    streams_of: Callable[[Lesson], Streams] = teacher_streams,
) -> AsyncIterator[SampleGroup]:
    """One sample a turn, by the table above. Close it to let go of what is being judged and taught.

    Args:
        judge: a `HintingJudge`, whose verdicts bring hints.
        needs_teacher: whether a turn without a lesson is left out whatever its score.
        streams_of: what of a lesson becomes streams; their fields are registered by the method that reads them.
    """

    async def finish(turn: Turn, verdict: Verdict) -> SampleGroup | NotTrained:
        lesson = await _lesson(store, teacher, turn, verdict)
        if isinstance(lesson, NoLesson) and (needs_teacher or not verdict.has_reward):
            return NotTrained(f"no teacher: {lesson.reason}")
        has_reward = (int(verdict.has_reward),) * len(turn.completion.token_ids)
        taught = {} if isinstance(lesson, NoLesson) else streams_of(lesson)
        return group_of(ScoredTurn(turn, verdict.score or 0.0, {"has_reward": has_reward, **taught}))

    samples = finished_turns(
        store,
        judge,
        finish,
        owner=owner,
        policy_version=policy_version,
        rollout=rollout,
        num_workers=judging.num_judge_workers,
    )
    async with contextlib.aclosing(samples):
        async for group in samples:
            yield group


async def _lesson(store: Store, teacher: Teacher, turn: Turn, verdict: Verdict) -> Lesson | NoLesson:
    if not verdict.hints:
        return NoLesson("there is no hint")
    prior = await store.get(turn.parent_id) if turn.parent_id else None
    lesson = await teacher.teach(turn, verdict.hints, prior)
    if isinstance(lesson, NoLesson):
        log.warning("turn not taught turn=%s reason=%r", turn.turn_id, lesson.reason)
    else:
        log.info("turn taught turn=%s teacher=%d overlap=%.2f", turn.turn_id, lesson.version, lesson.overlap)
    return lesson


def hint_reader(config: Config) -> str:
    """`rule` or `llm`, as asked for or as the judge is."""
    return config.judge.judge if config.teacher.hint_source == "auto" else config.teacher.hint_source


def hint_source(config: Config, model: ChatModel | None) -> HintSource:
    """Who reads hints from next states: the rules, or the model that the judge asks."""
    if hint_reader(config) == "rule":
        return RuleHints()
    assert model is not None  # it was asked for
    return LlmHints(model, config.judge, config.teacher.max_hints)


def adapter_of(lora: LoraConfig) -> Callable[[Turn], str]:
    """The adapter that answered a turn; empty: the base."""
    return lambda turn: lora.adapter_of(turn.source)
