"""Publishing apart from saving: every update is served at once, under a number that no other weights ever had."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import pytest
from scripted_learner import ScriptedLearner
from slime.config.sections import CheckpointConfig, RolloutConfig
from slime.errors import EngineRejected, RunStalled
from slime.monitor import Monitor, read_metrics
from slime.pipeline import Pipeline
from slime.progress import Progress
from slime.publisher import Publisher, remove_old
from slime.rollout.context import StreamRollout
from slime.status import read_status
from slime.store import Store
from slime.types import Sample, SampleGroup
from slime.weights.versions import Versions


class Engines:
    """What was served, as (version, weights), and what is served now."""

    def __init__(self) -> None:
        self.served: list[tuple[int, str]] = []
        self.version = 0

    async def publish(self, weights_dir: Path, version: int) -> None:
        await asyncio.sleep(0)
        self.served.append((version, (weights_dir / "weights").read_text()))
        self.version = version


def sample(version: int, *, turn_ids: tuple[str, ...] = ()) -> Sample:
    streams = {"loss_mask": (0, 1), "rollout_logprobs": (0.0, -0.1), "policy_versions": (-1, version)}
    return Sample((1, 2), streams, {"reward": 1.0}, turn_ids)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path / "buffer") as opened:
        yield opened


def build(
    store: Store,
    folder: Path,
    engines: Engines,
    rollout: Callable[[], AsyncGenerator[SampleGroup]],
    *,
    updates: int = 0,
    batch: int = 4,
    learner: ScriptedLearner | None = None,
    stall_after_s: float = 600.0,
    ends_when_stalled: bool = False,
    **checkpoint: int,
) -> Pipeline:
    save_dir = folder / "save"
    learner = learner or ScriptedLearner(save_dir)
    versions = Versions(save_dir)
    progress = Progress(versions.staleness)
    return Pipeline(
        store=store,
        rollout=StreamRollout(rollout),
        learner=learner,
        publisher=Publisher(versions, learner, engines.publish, progress=progress),
        progress=progress,
        monitor=Monitor(folder / "run"),
        owner="test",
        rollout_config=RolloutConfig(
            rollout_batch_size=batch,
            num_rollout=updates,
            queue_capacity=8,
            stall_after_s=stall_after_s,
            stall_samples=8,
        ),
        checkpoint_config=CheckpointConfig(save_dir=save_dir, **checkpoint),
        ends_when_stalled=ends_when_stalled,
    )


def sampling(engines: Engines, number: int | None = None) -> Callable[[], AsyncGenerator[SampleGroup]]:
    """Samples of whatever is served when they are made."""

    async def rollout() -> AsyncGenerator[SampleGroup]:
        index = 0
        while number is None or index < number:
            yield SampleGroup(f"g{index}", (sample(engines.version),))
            index += 1

    return rollout


async def test_every_update_is_served_at_once_however_seldom_it_is_saved(store: Store, tmp_path: Path):
    engines = Engines()
    pipeline = build(store, tmp_path, engines, sampling(engines), updates=60, save_interval=50)
    await asyncio.wait_for(pipeline.run(), 30)
    assert [version for version, _ in engines.served] == list(range(1, 61))
    assert len({weights for _, weights in engines.served}) == 60
    assert sorted(path.name for path in (tmp_path / "save").glob("checkpoint-*")) == ["checkpoint-50", "checkpoint-60"]
    entries = read_metrics(tmp_path / "run")
    assert [entry["weights/version"] for entry in entries] == list(range(1, 61))
    assert max(entry["queue/staleness_max"] for entry in entries) <= 4
    assert entries[-1]["queue/stale_total"] == 0
    status = read_status(tmp_path / "run")
    assert (status.state, status.step, status.version, status.trained) == ("done", 60, 60, 240)


async def test_publishing_less_often_than_training_leaves_the_last_update_served(store: Store, tmp_path: Path):
    engines = Engines()
    pipeline = build(store, tmp_path, engines, sampling(engines), updates=8, publish_interval=3, save_interval=4)
    await asyncio.wait_for(pipeline.run(), 30)
    lines = [json.loads(line) for line in (tmp_path / "save" / "versions.jsonl").read_text().splitlines()]
    assert [(line["version"], line["step"], line["checkpoint"]) for line in lines] == [(1, 3, 0), (2, 6, 4), (3, 8, 4)]


async def test_the_number_stands_in_the_journal_before_an_engine_is_asked(store: Store, tmp_path: Path):
    engines, journal = Engines(), tmp_path / "save" / "versions.jsonl"
    publish = engines.publish

    async def look_first(weights_dir: Path, version: int) -> None:
        assert json.loads(journal.read_text().splitlines()[-1])["version"] == version
        await publish(weights_dir, version)

    engines.publish = look_first  # type: ignore[method-assign]
    await asyncio.wait_for(build(store, tmp_path, engines, sampling(engines), updates=2).run(), 30)
    assert len(engines.served) == 2


async def test_the_last_two_publications_stay_on_the_disk(store: Store, tmp_path: Path):
    engines = Engines()
    await asyncio.wait_for(build(store, tmp_path, engines, sampling(engines), updates=6).run(), 30)
    published = tmp_path / "save" / "published"
    assert sorted(path.name for path in published.glob("version-*")) == ["version-5", "version-6"]


def test_a_publication_that_an_engine_may_be_loading_stays(tmp_path: Path):
    for version in (8, 9, 10, 11):
        (tmp_path / f"version-{version}").mkdir()
    remove_old(tmp_path, {tmp_path / "version-8"})
    assert sorted(path.name for path in tmp_path.glob("version-*")) == ["version-10", "version-11", "version-8"]


@pytest.mark.parametrize("save_interval", [1, 50])
async def test_a_rollout_that_ends_has_its_samples_trained_and_saved(store: Store, tmp_path: Path, save_interval: int):
    engines = Engines()
    pipeline = build(store, tmp_path, engines, sampling(engines, 8), save_interval=save_interval)
    await asyncio.wait_for(pipeline.run(), 10)
    assert read_status(tmp_path / "run").step == 2
    assert (tmp_path / "save" / "checkpoint-2").is_dir()
    assert read_status(tmp_path / "run").state == "done"


async def test_the_last_batch_of_a_rollout_may_be_smaller(store: Store, tmp_path: Path):
    engines, learner = Engines(), ScriptedLearner(tmp_path / "save", die_in_train=[3])
    pipeline = build(store, tmp_path, engines, sampling(engines, 10), learner=learner, save_interval=2)
    await asyncio.wait_for(pipeline.run(), 10)
    assert learner.num_deaths == 1
    assert [entry["train/samples"] for entry in read_metrics(tmp_path / "run")] == [4, 4, 2]
    assert (tmp_path / "save" / "checkpoint-3").is_dir()


async def test_a_rollout_of_nothing_ends_too(store: Store, tmp_path: Path):
    engines = Engines()
    await asyncio.wait_for(build(store, tmp_path, engines, sampling(engines, 0)).run(), 10)
    assert engines.served == []


async def test_a_rollout_that_raises_ends_the_run_with_its_error(store: Store, tmp_path: Path):
    async def rollout() -> AsyncGenerator[SampleGroup]:
        yield SampleGroup("g", (sample(0),))
        raise ZeroDivisionError("of the plug-in")

    with pytest.raises(ZeroDivisionError, match="of the plug-in"):
        await asyncio.wait_for(build(store, tmp_path, Engines(), rollout).run(), 10)
    assert read_status(tmp_path / "run").state == "failed"


async def test_weights_that_an_engine_refuses_end_the_run_and_its_status_says_so(store: Store, tmp_path: Path):
    engines = Engines()
    publish = engines.publish

    async def publish_two(weights_dir: Path, version: int) -> None:
        if version == 3:
            raise EngineRejected("http://e:1 refused version 3, which is withdrawn from all engines: no such file")
        await publish(weights_dir, version)

    engines.publish = publish_two  # type: ignore[method-assign]
    pipeline = build(store, tmp_path, engines, sampling(engines))
    with pytest.raises(EngineRejected, match="refused version 3"):
        await asyncio.wait_for(pipeline.run(), 10)
    status = read_status(tmp_path / "run")
    assert (status.state, status.version) == ("failed", 2)
    assert "refused version 3" in status.reason
    again = Engines()
    await asyncio.wait_for(build(store, tmp_path, again, sampling(again), updates=3).run(), 10)
    assert [version for version, _ in again.served] == [4, 5], "2 updates are saved; 3 names what was refused, for ever"


async def test_a_run_over_prompts_that_drops_all_it_samples_ends_and_names_the_cause(store: Store, tmp_path: Path):
    """Every sample is labelled as of version 0, as when nobody asks the adapter: after five updates all are stale."""
    engines = Engines()

    async def base_only() -> AsyncGenerator[SampleGroup]:
        index = 0
        while True:
            yield SampleGroup(f"g{index}", (sample(0),))
            index += 1
            await asyncio.sleep(0.001)

    pipeline = build(store, tmp_path, engines, base_only, stall_after_s=0.4, ends_when_stalled=True)
    with pytest.raises(RunStalled, match=r"nothing trained for .* s: (\d+) of \1 samples are stale: .*max-staleness"):
        await asyncio.wait_for(pipeline.run(), 20)
    status = read_status(tmp_path / "run")
    assert (status.state, status.step) == ("failed", 5)
    assert status.dropped["stale"] >= 8
    assert status.made == status.trained + status.waiting + sum(status.dropped.values())


async def test_a_run_whose_batch_fills_slowly_is_not_stalled(store: Store, tmp_path: Path):
    engines = Engines()

    async def slowly() -> AsyncGenerator[SampleGroup]:
        for index in range(4):
            yield SampleGroup(f"g{index}", (sample(engines.version),))
            await asyncio.sleep(0.2)

    pipeline = build(store, tmp_path, engines, slowly, stall_after_s=0.2, ends_when_stalled=True)
    await asyncio.wait_for(pipeline.run(), 10)
    assert read_status(tmp_path / "run").step == 1
