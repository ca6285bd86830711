"""A driver to be killed: store, rollout, scripted trainer, publication over HTTP; a line on stdin starts it anew.

Everything is imported once and the driver forked, so that a start takes milliseconds. A line is `run` or `drain`; what
is printed is the pid of the driver and, when it has ended, its exit status.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path

from scripted_learner import ScriptedLearner
from slime.config.sections import CheckpointConfig, JudgeConfig, RolloutConfig
from slime.engines.client import HttpEngine
from slime.judging.scripted import ScriptedJudge
from slime.monitor import Monitor
from slime.pipeline import Pipeline
from slime.progress import Progress
from slime.publisher import Publisher
from slime.rollout.context import RolloutContext, StreamRollout
from slime.rollout.live import live_samples, scored_sample
from slime.store import Store
from slime.types import Batch, TrainReport
from slime.weights.versions import Versions


class SlowLearner(ScriptedLearner):
    """Takes a moment for an update, so that kills find it in one."""

    async def train(self, batch: Batch) -> TrainReport:
        await asyncio.sleep(0.01)
        return await super().train(batch)


async def drive(folder: Path, url: str, save_interval: int, *, until_drained: bool) -> None:
    """One life of the run."""
    rollout = RolloutConfig(rollout_batch_size=4, max_staleness=4, queue_capacity=12)
    learner = SlowLearner(folder / "save")
    async with HttpEngine(url) as engine, Store.open(folder / "buffer", appends=False) as store:
        versions = Versions(folder / "save")
        progress = Progress(versions.staleness)
        ctx = RolloutContext(store, ScriptedJudge(lambda turn: 1.0), "train", progress, rollout, JudgeConfig())
        pipeline = Pipeline(
            store=store,
            rollout=StreamRollout(lambda: live_samples(ctx, scored_sample)),
            learner=learner,
            publisher=Publisher(
                versions, learner, engine.update_weights, progress=progress, newest_served=engine.version
            ),
            progress=progress,
            monitor=Monitor(folder / "run"),
            owner="train",
            rollout_config=rollout,
            checkpoint_config=CheckpointConfig(save_dir=folder / "save", save_interval=save_interval),
            until_drained=until_drained,
        )
        await pipeline.run()


def main() -> None:
    folder, url, save_interval = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                asyncio.run(drive(folder, url, save_interval, until_drained=line.strip() == "drain"))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
