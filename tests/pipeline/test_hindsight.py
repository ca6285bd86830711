"""From judged turns to samples that a teacher has read: who becomes one, and what its streams say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slime.config.sections import JudgeConfig, RolloutConfig
from slime.judging.hindsight.teacher import Teacher, TeacherScores, Unscored
from slime.judging.scripted import ScriptedJudge
from slime.progress import Progress
from slime.rollout.context import RolloutContext
from slime.rollout.hindsight import taught_samples
from slime.rollout.live import judged_samples
from slime.store import Store
from slime.types import Sample, SampleGroup, Turn, TurnState, Verdict
from test_pipeline import NEXT, turn

TURNS = {
    "both": Verdict(-1.0, hints=("Keep it short.",)),
    "hinted": Verdict(None, hints=("Keep it short.",), reason="the votes disagree"),
    "zero": Verdict(0.0, hints=("Keep it short.",)),
    "scored": Verdict(1.0),
    "unteachable": Verdict(-1.0, hints=("fail",)),
    "hopeless": Verdict(None, hints=("fail",)),
    "nothing": Verdict(None, reason="no answer"),
}


class ScriptedTeacher(Teacher):
    """Finds every token likely, or fails where the hint says so."""

    def __init__(self) -> None:
        self.priors: list[str | None] = []

    async def teach(self, turn: Turn, hints, prior: Turn | None = None) -> TeacherScores | Unscored:  # type: ignore[no-untyped-def]
        self.priors.append(prior.turn_id if prior else None)
        if hints[0] == "fail":
            return Unscored("EngineRejected: too long")
        return TeacherScores(hints[0], (-0.25,) * len(turn.completion.token_ids), version=0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "buffer") as opened:
        for name in TURNS:
            await opened.append(turn(name))
            await opened.attach(name, NEXT)
        yield opened


async def collect(samples: AsyncIterator[SampleGroup], store: Store) -> dict[str, Sample]:
    """The samples by turn, once every turn of the store is either one of them or excluded."""
    found: dict[str, Sample] = {}

    async def consume() -> None:
        async for group in samples:
            found[group.group_id] = group.samples[0]

    async def is_done() -> bool:
        turns = await store.recent(50)
        return all(t.turn_id in found or t.state is TurnState.EXCLUDED for t in turns)

    collecting = asyncio.create_task(consume())
    try:
        async with asyncio.timeout(20):
            while not await is_done():  # noqa: ASYNC110 - another task works meanwhile, on a store
                await asyncio.sleep(0.01)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
    return found


class ScriptedHints:
    """Reads the hint that is written beside a turn's verdict."""

    async def hindsight(self, turn: Turn) -> Verdict:
        hint = TURNS.get(turn.turn_id, TURNS["both"]).hint
        return Verdict(None, hints=(hint,) if hint else (), reason="scripted")


def taught(store: Store, *, needs_teacher: bool, teacher: Teacher | None = None) -> AsyncIterator[SampleGroup]:
    judge = ScriptedJudge(lambda t: TURNS.get(t.turn_id, TURNS["both"]))
    judging = JudgeConfig(num_judge_workers=len(TURNS))
    ctx = RolloutContext(store, judge, "test", Progress(), RolloutConfig(), judging)
    return taught_samples(
        ctx, ScriptedHints(), teacher or ScriptedTeacher(), needs_teacher=needs_teacher, topk_streams=lambda top: {}
    )


async def reason(store: Store, name: str) -> str:
    stored = await store.get(name)
    assert stored is not None
    assert stored.state is TurnState.EXCLUDED
    return (await store.history(name))[-1].note


async def test_one_sample_a_turn_and_each_part_only_where_it_was_measured(store: Store):
    samples = await collect(taught(store, needs_teacher=False), store)
    assert samples.keys() == {"both", "hinted", "zero", "scored", "unteachable"}
    for name, sample in samples.items():
        has_teacher, has_reward = name in ("both", "hinted", "zero"), name in ("both", "scored", "unteachable")
        reply = slice(3, 5)
        assert tuple(sample.streams.get("has_teacher", (0,) * 5)[reply]) == (has_teacher,) * 2
        assert tuple(sample.streams["has_reward"][reply]) == (has_reward,) * 2
        assert tuple(sample.streams["rewards"][reply]) == ((TURNS[name].score or 0.0),) * 2
        if has_teacher:
            assert sample.streams["teacher_logprobs"][reply] == (-0.25, -0.25)
    assert "EngineRejected: too long" in await reason(store, "hopeless")
    assert "no answer" in await reason(store, "nothing")


async def test_a_method_that_needs_its_teacher_leaves_the_others_out(store: Store):
    samples = await collect(taught(store, needs_teacher=True), store)
    assert samples.keys() == {"both", "hinted", "zero"}
    assert "there is no hint" in await reason(store, "scored")
    assert "EngineRejected: too long" in await reason(store, "unteachable")


async def test_a_teacher_is_given_the_turn_before(store: Store):
    teacher = ScriptedTeacher()
    await store.append(turn("child", parent_id="both", session_id="sessionboth"))
    await store.attach("child", NEXT)
    samples = await collect(taught(store, needs_teacher=False, teacher=teacher), store)
    assert "child" in samples
    assert "both" in teacher.priors


async def test_binary_rl_leaves_hints_without_a_score_alone(store: Store):
    samples = judged_samples(
        store,
        ScriptedJudge(lambda t: TURNS[t.turn_id]),
        owner="test",
        policy_version=lambda: 0,
        rollout=RolloutConfig(),
        judging=JudgeConfig(num_judge_workers=len(TURNS)),
    )
    assert (await collect(samples, store)).keys() == {"both", "scored", "unteachable"}
    assert await reason(store, "hinted") == "it has a hint and no score"
