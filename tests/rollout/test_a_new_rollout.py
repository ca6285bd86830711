"""A rollout is added by one new file and named by one flag; nothing else knows of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prompt_rig import Rig
from scripted_learner import ScriptedLearner
from slime.compat.prompts.plan import plan_rollout
from slime.errors import ConfigError
from slime.judging.rules.judge import RuleJudge
from slime.monitor import Monitor
from slime.pipeline import Pipeline
from slime.progress import Progress
from slime.publisher import Publisher
from slime.rollout.context import RolloutContext
from slime.status import read_status
from slime.store import Store
from slime.weights.versions import Versions

SCRIPTED = '''
"""Six samples of a script, two an update, each made once its version is served; then there is no more data."""

from slime.types import Sample, SampleGroup


async def generate_rollout(ctx):
    for number in range(6):
        version = ctx.progress.version
        streams = {"loss_mask": (0, 1), "rollout_logprobs": (0.0, -0.1), "policy_versions": (-1, version)}
        yield SampleGroup(f"scripted{number}", (Sample((1, 2), streams, {"reward": float(number)}, ()),))
'''


async def run_to_its_end(rig: Rig, *flags: str) -> list[float]:
    """The rewards of what was trained, in order."""
    config = rig.config("--rollout-batch-size", "2", "--run-dir", str(rig.folder / "run"), *flags)
    rewards: list[float] = []

    class Learner(ScriptedLearner):
        async def train(self, batch):  # type: ignore[no-untyped-def]
            rewards.extend(sample.values["reward"] for sample in batch.samples)
            return await super().train(batch)

    async def publish(weights_dir: Path, version: int) -> None: ...

    learner, versions = Learner(config.checkpoint.save_dir), Versions(config.checkpoint.save_dir)
    progress = Progress(versions.staleness)
    async with Store.open(rig.folder / "turns") as store:
        ctx = RolloutContext(store, RuleJudge(), "test", progress, config.rollout, config.judge)
        pipeline = Pipeline(
            store=store,
            rollout=plan_rollout(config).open(ctx, config, {}),
            learner=learner,
            publisher=Publisher(versions, learner, publish, progress=progress),
            progress=progress,
            monitor=Monitor(config.monitor.run_dir),
            owner="test",
            rollout_config=config.rollout,
            checkpoint_config=config.checkpoint,
        )
        await asyncio.wait_for(pipeline.run(), 30)
    return rewards


async def test_a_new_rollout_is_one_file_and_one_flag_and_its_end_ends_the_run(rig: Rig):
    file = rig.plugin("scripted_rollout.py", SCRIPTED)
    assert await run_to_its_end(rig, "--rollout-function-path", file) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    status = read_status(rig.folder / "run")
    assert (status.state, status.step, status.version, status.trained) == ("done", 3, 3, 6)
    assert list((rig.folder / "save").glob("checkpoint-3*"))


async def test_a_function_of_the_context_may_return_the_stream(rig: Rig):
    stream = SCRIPTED.replace("async def generate_rollout(ctx)", "async def _samples(ctx)")
    file = rig.plugin("returning_rollout.py", stream + "\n\ndef generate_rollout(ctx):\n    return _samples(ctx)\n")
    assert len(await run_to_its_end(rig, "--rollout-function-path", file)) == 6


def test_what_a_rollout_asks_for_and_nobody_has_is_told_before_the_start(rig: Rig):
    file = rig.plugin("asking_rollout.py", SCRIPTED.replace("(ctx)", "(ctx, robots)"))
    with pytest.raises(ConfigError, match=r"asks for 'robots', which is not one of .*ctx.*teacher"):
        plan_rollout(rig.config("--rollout-function-path", file))
