"""The training side of the loop on a real store, with a scripted judge and a scripted trainer that dies."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from scripted_learner import ScriptedLearner
from slime.config.sections import CheckpointConfig, JudgeConfig, RolloutConfig
from slime.errors import TrainerError
from slime.judging.drift import WatchedJudge
from slime.judging.scripted import ScriptedJudge
from slime.monitor import Monitor, read_metrics
from slime.pipeline import Pipeline
from slime.progress import Progress
from slime.publisher import Publisher
from slime.rollout.context import RolloutContext, StreamRollout
from slime.rollout.live import live_samples, sample_of
from slime.status import read_status
from slime.store import Store
from slime.types import (
    Batch,
    Completion,
    Feedback,
    Message,
    SampleGroup,
    SamplingParams,
    TrainReport,
    Turn,
    TurnKind,
    TurnState,
    Verdict,
    VersionSpan,
)
from slime.weights.versions import Versions

NEXT: tuple[Message, ...] = ({"role": "user", "content": "thanks"},)


def turn(name: str, *, version: int = 0, **changes: object) -> Turn:
    values = {
        "turn_id": name,
        "session_id": f"session{name}",
        "parent_id": None,
        "kind": TurnKind.MAIN,
        "messages": ({"role": "user", "content": f"ask {name}"},),
        "prompt_ids": (1, 2, 3),
        "completion": Completion((7, 8), (-0.1, -0.7), "reply", "stop", (VersionSpan(version, 0, 2),)),
        "sampling": SamplingParams(),
        "reply": {"role": "assistant", "content": "reply"},
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


async def fill(store: Store, names: list[str], **changes: object) -> None:
    for name in names:
        await store.append(turn(name, **changes))
        await store.attach(name, NEXT)


async def make_sample(judged: Turn, verdict: Verdict) -> SampleGroup:
    return sample_of(judged, verdict)


def build(
    store: Store,
    learner: ScriptedLearner,
    folder: Path,
    judge: ScriptedJudge | WatchedJudge,
    *,
    save_interval: int = 1,
    updates: int,
    max_staleness: int = 9,
    until_drained: bool = False,
    lease_s: float = 5.0,
) -> tuple[Pipeline, list[int]]:
    published: list[int] = []
    versions = Versions(folder / "save")
    rollout = RolloutConfig(rollout_batch_size=2, num_rollout=updates, max_staleness=max_staleness, lease_s=lease_s)

    progress = Progress(versions.staleness)
    ctx = RolloutContext(store, judge, "test", progress, rollout, JudgeConfig(num_judge_workers=3))

    async def publish(weights_dir: Path, version: int) -> None:
        assert weights_dir.exists()  # noqa: ASYNC240 - a local look
        published.append(version)

    pipeline = Pipeline(
        store=store,
        rollout=StreamRollout(lambda: live_samples(ctx, make_sample)),
        learner=learner,
        publisher=Publisher(versions, learner, publish, progress=progress),
        progress=progress,
        monitor=Monitor(folder / "run"),
        owner="test",
        rollout_config=rollout,
        checkpoint_config=CheckpointConfig(save_interval=save_interval),
        until_drained=until_drained,
        judge_metrics=judge.metrics if isinstance(judge, WatchedJudge) else dict,
    )
    return pipeline, published


async def run(pipeline: Pipeline) -> None:
    await asyncio.wait_for(pipeline.run(), 30)


@pytest.fixture
async def store(tmp_path: Path):
    async with Store.open(tmp_path / "buffer") as opened:
        yield opened


def good(_: Turn) -> float:
    return 1.0


async def test_every_effective_turn_is_trained_once_and_in_order(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c", "d"])
    learner = ScriptedLearner(tmp_path / "save")
    pipeline, published = build(store, learner, tmp_path, ScriptedJudge(good), updates=2)
    await run(pipeline)
    assert [turn_id for _, ids in learner.trained for turn_id in ids] == ["a", "b", "c", "d"]
    assert published == [1, 2]
    assert await store.trained_by(1) == ("a", "b")
    assert await store.trained_at("d") == 2
    assert [entry["step"] for entry in read_metrics(tmp_path / "run")] == [1, 2]


def test_a_sample_belongs_to_whoever_sent_the_turn():
    group = sample_of(turn("a", source="alice"), Verdict(1.0))
    assert [sample.source for sample in group.samples] == ["alice"]
    with pytest.raises(ValueError, match="unjudged"):
        sample_of(turn("a"), Verdict(None))


async def test_what_says_nothing_or_cannot_be_trained_is_excluded_with_its_reason(store: Store, tmp_path: Path):
    await fill(store, ["none", "zero"])
    await fill(store, ["greedy"], sampling=SamplingParams(temperature=0.0))
    await fill(store, ["a", "b"])
    judge = ScriptedJudge(lambda t: {"none": None, "zero": 0.0}.get(t.turn_id, 1.0))
    pipeline, _ = build(store, ScriptedLearner(tmp_path / "save"), tmp_path, judge, updates=1)
    await run(pipeline)
    for name, reason in {"none": "scripted to fail", "zero": "", "greedy": "temperature 0"}.items():
        stored = await store.get(name)
        assert stored is not None
        assert stored.state is TurnState.EXCLUDED
        assert reason in (await store.history(name))[-1].note
    assert "greedy" not in judge.judged


async def test_turns_of_weights_long_gone_are_not_trained(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c", "d", "e", "f"])
    pipeline, _ = build(store, ScriptedLearner(tmp_path / "save"), tmp_path, ScriptedJudge(good), updates=3)
    await run(pipeline)
    await fill(store, ["old"])
    await fill(store, ["new", "newer"], version=3)
    learner = ScriptedLearner(tmp_path / "save")
    later, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=4, max_staleness=2)
    await run(later)
    assert await store.trained_by(4) == ("new", "newer")
    stored = await store.get("old")
    assert stored is not None
    assert stored.state is TurnState.EXCLUDED
    assert "stale" in (await store.history("old"))[-1].note


@pytest.mark.parametrize("save_interval", [1, 2])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("moment", ["die_in_train", "die_after_save"])
async def test_a_trainer_that_dies_loses_nothing_and_trains_nothing_twice(
    store: Store, tmp_path: Path, moment: str, step: int, save_interval: int
):
    names = [f"t{i}" for i in range(8)]
    await fill(store, names)
    learner = ScriptedLearner(tmp_path / "save", **{moment: [step]})
    pipeline, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=4, save_interval=save_interval)
    await run(pipeline)
    fires = moment == "die_in_train" or step % save_interval == 0
    assert learner.num_deaths == (1 if fires else 0)
    by_step = [turn_id for s in (1, 2, 3, 4) for turn_id in await store.trained_by(s)]
    assert sorted(by_step) == names
    assert len(learner.trained) >= 4


async def test_a_killed_run_goes_on_where_its_checkpoint_stands(store: Store, tmp_path: Path):
    """The driver dies after the checkpoint and before the store was told: the next run tells it."""
    await fill(store, ["a", "b", "c", "d"])
    doomed = ScriptedLearner(tmp_path / "save", die_after_save=[1])
    pipeline, _ = build(store, doomed, tmp_path, ScriptedJudge(good), updates=2)
    pipeline._start_over = _raise  # type: ignore[method-assign, assignment]
    with pytest.raises(TrainerError, match="after saving step 1"):
        await run(pipeline)
    assert await store.trained_by(1) == ()
    again = ScriptedLearner(tmp_path / "save")
    pipeline, published = build(store, again, tmp_path, ScriptedJudge(good), updates=2)
    await run(pipeline)
    assert await store.trained_by(1) == ("a", "b")
    assert again.trained == [(2, ("c", "d"))]
    assert published == [2, 3], "version 1 was served before the crash and is never given again"


async def _raise(error: TrainerError, _: object) -> None:
    raise error


async def test_an_update_interrupted_after_its_checkpoint_stands_in_the_figures(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c", "d"])
    learner = ScriptedLearner(tmp_path / "save")
    first, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=2)
    is_saved, save = asyncio.Event(), learner.save

    async def save_and_hang() -> Path:
        learner.save = save  # type: ignore[method-assign]
        checkpoint = await save()
        is_saved.set()
        await asyncio.sleep(30)
        return checkpoint

    learner.save = save_and_hang  # type: ignore[method-assign]
    running = asyncio.create_task(first.run())
    await asyncio.wait_for(is_saved.wait(), 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    second, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=2)
    await run(second)
    assert [ids for _, ids in learner.trained] == [("a", "b"), ("c", "d")]
    assert [(entry["step"], entry["train/samples"]) for entry in read_metrics(tmp_path / "run")] == [(1, 2), (2, 2)]


async def test_a_skipped_update_makes_no_version(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c", "d"])
    learner = ScriptedLearner(tmp_path / "save", skip={1: "the gradient is not finite"})
    pipeline, published = build(store, learner, tmp_path, ScriptedJudge(good), updates=1)
    await run(pipeline)
    assert published == [1]
    assert await store.trained_by(1) == ("c", "d")
    assert "not finite" in (await store.history("a"))[-1].note


async def test_a_turn_that_cannot_be_trained_is_excluded_and_its_batch_is_not(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c", "d"])

    class Choosy(ScriptedLearner):
        async def train(self, batch):  # type: ignore[no-untyped-def]
            report = await super().train(batch)
            return dataclasses.replace(report, left_out={"b": "reward: nan is not finite"} if report.step == 1 else {})

    pipeline, _ = build(store, Choosy(tmp_path / "save"), tmp_path, ScriptedJudge(good), updates=2)
    await run(pipeline)
    assert [await store.trained_by(step) for step in (1, 2)] == [("a",), ("c", "d")]
    assert (await store.history("b"))[-1].note == "cannot be trained: reward: nan is not finite"


async def test_a_trainer_that_keeps_dying_ends_the_run(store: Store, tmp_path: Path):
    await fill(store, ["a", "b"])

    class Hopeless(ScriptedLearner):
        async def train(self, batch):  # type: ignore[no-untyped-def]
            raise TrainerError("no memory")

    pipeline, _ = build(store, Hopeless(tmp_path / "save"), tmp_path, ScriptedJudge(good), updates=1)
    with pytest.raises(TrainerError, match="no memory"):
        await run(pipeline)


@pytest.mark.parametrize("save_interval", [1, 50])
async def test_a_run_on_what_is_stored_ends_when_nothing_is_left(store: Store, tmp_path: Path, save_interval: int):
    """Five turns in batches of two: the last update takes the one that is left, and is saved."""
    names = ["a", "b", "c", "d", "e"]
    await fill(store, [*names, "none"])
    judge = ScriptedJudge(lambda t: None if t.turn_id == "none" else 1.0)
    learner = ScriptedLearner(tmp_path / "save")
    pipeline, published = build(
        store, learner, tmp_path, judge, updates=0, save_interval=save_interval, until_drained=True
    )
    await run(pipeline)
    assert await store.exclusions() == {"unjudged": 1}
    assert [ids for _, ids in learner.trained] == [("a", "b"), ("c", "d"), ("e",)]
    assert published[-1] == 3
    assert await store.trained_at("e") == 3
    again, _ = build(store, ScriptedLearner(tmp_path / "save"), tmp_path, judge, updates=0, until_drained=True)
    await run(again)
    assert read_status(tmp_path / "run").step == 3


async def test_a_trainer_that_dies_on_the_last_turns_still_trains_them(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c"])
    learner = ScriptedLearner(tmp_path / "save", die_in_train=[2])
    pipeline, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=0, until_drained=True)
    await run(pipeline)
    assert learner.num_deaths == 1
    assert await store.trained_at("c") == 2


async def test_turns_of_unsaved_updates_stay_leased(store: Store, tmp_path: Path):
    """Short leases, no checkpoint: nobody may take a second time what was trained a while ago."""
    await fill(store, ["a", "b"])
    learner = ScriptedLearner(tmp_path / "save")
    pipeline, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=0, save_interval=50, lease_s=1.5)
    running = asyncio.create_task(pipeline.run())
    try:
        async with asyncio.timeout(20):
            while not learner.trained:  # noqa: ASYNC110 - the trainer tells nobody
                await asyncio.sleep(0.05)
        await asyncio.sleep(2.5)
        assert await store.claim(9, "somebody else", 5.0) == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_a_person_says_of_a_queued_turn_is_what_it_is_trained_with(store: Store, tmp_path: Path):
    """The verdict waits for a second sample when the person changes it; the trainer sees the new one only."""
    await fill(store, ["a"])
    rewards: dict[str, float] = {}

    class Looking(ScriptedLearner):
        async def train(self, batch: Batch) -> TrainReport:
            rewards.update({sample.turn_ids[0]: sample.values["reward"] for sample in batch.samples})
            return await super().train(batch)

    learner = Looking(tmp_path / "save")
    pipeline, _ = build(store, learner, tmp_path, ScriptedJudge(good), updates=1)
    running = asyncio.create_task(run(pipeline))
    async with asyncio.timeout(10):
        while await store.verdict("a") is None:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.01)
    await store.add_feedback("a", Feedback("thumbs", -1.0))
    await fill(store, ["b"])
    await running
    assert rewards == {"a": -1.0, "b": 1.0}
    assert sorted(turn_id for _, ids in learner.trained for turn_id in ids) == ["a", "b"]
    verdict = await store.verdict("a")
    assert verdict is not None
    assert verdict.judge == "person"
    assert [kept.judge for kept in await store.judgements("a")] == ["scripted", "scripted", "person"]


async def test_feedback_alone_trains_a_turn_that_nobody_answered(store: Store, tmp_path: Path):
    for name in ("a", "b"):
        await store.append(turn(name))
    await store.add_feedback("a", Feedback("score", 0.5))
    await store.add_feedback("b", Feedback("text", text="Too long."))
    judge = ScriptedJudge(lambda t: -1.0 if t.next_state == ({"role": "user", "content": "Too long."},) else None)
    learner = ScriptedLearner(tmp_path / "save")
    pipeline, _ = build(store, learner, tmp_path, judge, updates=1)
    await run(pipeline)
    assert judge.judged == ["b"]
    verdicts = [await store.verdict(name) for name in ("a", "b")]
    assert [(verdict.score, verdict.judge) for verdict in verdicts if verdict] == [(0.5, "person"), (-1.0, "person")]


async def test_what_the_judge_did_stands_beside_the_updates(store: Store, tmp_path: Path):
    await fill(store, ["a", "b", "c"])
    judge = WatchedJudge(ScriptedJudge(lambda t: 0.0 if t.turn_id == "c" else 1.0))
    pipeline, _ = build(store, ScriptedLearner(tmp_path / "save"), tmp_path, judge, updates=1)
    await run(pipeline)
    [entry] = read_metrics(tmp_path / "run")
    assert entry["judge/turns"] in (2, 3), "the third may be judged while the update is made"
    assert entry["judge/positive_rate"] == pytest.approx(2 / entry["judge/turns"])
    assert entry["judge/drift_alarm"] == 0.0
