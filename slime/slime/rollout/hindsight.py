"""Samples of live turns with the teacher's log-probs: for on-policy distillation, with or without a reward.

    Turn, Verdict with hints ─ Teacher ─▶ TeacherScores ─ streams ─▶ Sample: teacher_logprobs, has_teacher, has_reward
                                  │
                                  └─▶ Unscored ─▶ a sample with its reward alone, or none

    hint   reward    a method that needs its teacher   one that does not
    yes    yes       teacher                           teacher and reward
    yes    no        teacher                           teacher
    no     yes       nothing                           reward
    no     no        nothing                           nothing

A reward is a score, but for the 0 by which a judge of −1, 0 and 1 says that it has no opinion.
A teacher that failed counts as no hint: it drops its part of the turn, and nothing stands in for it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slime.config.sections import Config
from slime.data.stitching import ScoredTurn
from slime.judging.hindsight.hints import HintingJudge, HintSource, LlmHints, RuleHints
from slime.judging.hindsight.teacher import Teacher, TeacherScores, TopIds, Unscored
from slime.judging.llm.chat_model import ChatModel
from slime.rollout.context import RolloutContext
from slime.rollout.live import NotTrained, group_of, live_samples
from slime.store import Store
from slime.types import SampleGroup, Turn, Verdict

log = logging.getLogger(__name__)

Streams = Mapping[str, Sequence[Any]]


def taught_samples(
    ctx: RolloutContext,
    hint_source: HintSource,
    teacher: Teacher,
    *,
    needs_teacher: bool,
    topk_streams: Callable[[TopIds], Streams],
) -> AsyncGenerator[SampleGroup]:
    """One sample a turn, by the table above.

    Args:
        needs_teacher: leave a turn that the teacher did not score out, whatever its reward.
        topk_streams: with `--teacher-top-k`, which of the top ids become streams; the method that reads them
            registers their fields.
    """

    async def make_sample(turn: Turn, verdict: Verdict) -> SampleGroup | NotTrained:
        scores = await _scores_of(ctx.store, teacher, turn, verdict)
        if isinstance(scores, Unscored) and (needs_teacher or not verdict.has_reward):
            return NotTrained(f"no teacher: {scores.reason}")
        has_reward = (int(verdict.has_reward),) * len(turn.completion.token_ids)
        streams: dict[str, Sequence[Any]] = {"has_reward": has_reward}
        if isinstance(scores, TeacherScores):
            streams |= {"teacher_logprobs": scores.logprobs, "has_teacher": (1,) * len(scores.logprobs)}
            if ctx.teaching.teacher_top_k and scores.top is not None:
                streams |= topk_streams(scores.top)
        return group_of(ScoredTurn(turn, verdict.score or 0.0, streams))

    hinting = HintingJudge(ctx.judge, hint_source, ctx.teaching.hint_selection)
    return live_samples(replace(ctx, judge=hinting), make_sample)


async def _scores_of(store: Store, teacher: Teacher, turn: Turn, verdict: Verdict) -> TeacherScores | Unscored:
    if not verdict.hints:
        return Unscored("there is no hint")
    prior = await store.get(turn.parent_id) if turn.parent_id else None
    scores = await teacher.teach(turn, verdict.hints, prior)
    if isinstance(scores, Unscored):
        log.warning("turn not taught turn=%s reason=%r", turn.turn_id, scores.reason)
    else:
        log.info("turn taught turn=%s teacher=%d overlap=%.2f", turn.turn_id, scores.version, scores.overlap)
    return scores


def hint_reader(config: Config) -> str:
    """`rule` or `llm`, as asked for or as the judge is."""
    return config.judge.judge if config.teacher.hint_source == "auto" else config.teacher.hint_source


def hint_source(config: Config, model: ChatModel | None) -> HintSource:
    """What reads hints from next states: the rules, or the model that the judge asks."""
    if hint_reader(config) == "rule":
        return RuleHints()
    assert model is not None  # it was asked for
    return LlmHints(model, config.judge, config.teacher.max_hints)
