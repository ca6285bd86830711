"""`python slime/train.py`: a training run, from the configuration to the last update.

    check the settings ─▶ Ray ─▶ engines ─▶ server ─▶ judge, teacher, store ─▶ trainer ranks ─▶ pipeline
                                 └────── supervised: a process that dies is started again ─────┘

Everything that can be wrong with the settings is found before anything is started. A run resumes from the newest
checkpoint in --save-dir; after a kill at any moment, every acknowledged turn is still there.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime.cluster.children import run_beside, server
from slime.cluster.fleet import Fleet
from slime.cluster.judge_and_teacher import judge_model, judge_of, teaching
from slime.cluster.learner import RankedLearner
from slime.cluster.placement import on_cpu
from slime.cluster.session import ray_session, until_signalled
from slime.config.checks.conditions import method_name
from slime.config.loader import load_config
from slime.config.sections import Config
from slime.engines.launch import with_token
from slime.errors import ConfigError, OpenClawError
from slime.judging.drift import WatchedJudge
from slime.monitor import Monitor, configure_logging, link_log
from slime.pipeline import Pipeline
from slime.plugins.settings import plugin_settings
from slime.preflight import PROG, Plan, check
from slime.progress import Progress
from slime.publisher import Publisher
from slime.rollout.context import RolloutContext
from slime.rollout.hindsight import hint_source
from slime.store import Store
from slime.tools.offline import import_data_path
from slime.weights.versions import Versions

OWNER = "train"
"""The holder of leases in the store; a run that is started again frees what it held before."""


def main(argv: Sequence[str] | None = None, *, prog: str = PROG, defaults: Mapping[str, Any] | None = None) -> int:
    """The exit status: 0 done or stopped, 1 a failure, 2 a mistake in the settings.

    Args:
        defaults: settings by path, of a program that is this one under another name.
    """
    config = load_config(argv, prog=prog, defaults=defaults)
    run_dir = config.monitor.run_dir
    try:
        log_file = run_dir / "logs" / "training.log"
        configure_logging(config.server.log_level, log_file)
        link_log(log_file, Path("logs/training.log"))
        plan = check(config)
        with ray_session(config.cluster):
            asyncio.run(until_signalled(train(on_cpu(config), plan)))
    except OpenClawError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def train(config: Config, plan: Plan) -> None:
    """Place everything, run until the updates are made, and end what was placed."""
    log_dir, placed = config.monitor.run_dir.resolve() / "logs", plan.placement
    async with contextlib.AsyncExitStack() as stack:
        attached = tuple(url.strip() for url in config.engine.engine_url.split(",") if url.strip())
        if not attached:
            config = replace(config, engine=with_token(config.engine))
        fleet = Fleet(config.model, config.engine, placed.engines, log_dir, attached, lora=config.lora)
        children = [fleet, server(config, fleet.urls, log_dir)] if config.cluster.serve else [fleet]
        for child in children:
            stack.push_async_callback(child.stop)
            await child.start()
        learner = RankedLearner(config, placed.ranks)
        stack.push_async_callback(learner.stop)
        model, named = None, dict[str, Any]()
        if plan.asks_model:
            model = await stack.enter_async_context(judge_model(config, fleet, placed.judge, log_dir))
        if plan.needs_teacher:
            teacher = await stack.enter_async_context(teaching(config, fleet, placed.teacher, log_dir))
            named = {"teacher": teacher, "hint_source": hint_source(config, model)}
        is_offline = bool(config.rollout.data_path)
        store = await stack.enter_async_context(Store.open(config.server.rl_buffer_dir, appends=is_offline))
        if is_offline:
            await import_data_path(config, store, fleet.clients[0])
        judge = WatchedJudge(judge_of(config, plan.rollout.reward, model, store))
        monitor = Monitor(
            config.monitor.run_dir,
            run_name=config.monitor.run_name or f"openclaw-rl-{method_name(config)}",
            use_wandb=config.monitor.use_wandb,
            wandb_project=config.monitor.wandb_project,
            settings=plugin_settings(config),
        )
        stack.callback(monitor.close)
        versions = Versions(config.checkpoint.save_dir.resolve())
        per_user = config.lora.use_lora and config.lora.adapter_per == "user"
        progress = Progress(versions.staleness, is_shared=not per_user)
        sections = config.rollout, config.judge, config.teacher
        ctx = RolloutContext(store, judge, OWNER, progress, *sections, fleet.clients, fleet.urls, model)
        pipeline = Pipeline(
            store=store,
            rollout=plan.rollout.open(ctx, config, named),
            learner=learner,
            publisher=Publisher(
                versions,
                learner,
                fleet.publish,
                progress=progress,
                in_use=fleet.in_use,
                newest_served=fleet.newest_version,
            ),
            progress=progress,
            monitor=monitor,
            owner=OWNER,
            rollout_config=config.rollout,
            checkpoint_config=config.checkpoint,
            judge_metrics=judge.metrics,
            by_source=per_user,
            until_drained=is_offline,
            ends_when_stalled=not plan.rollout.is_endless,
        )
        await run_beside(
            pipeline.run(), *(child.supervise() for child in children), keep_serving=config.cluster.keep_serving
        )


if __name__ == "__main__":
    sys.exit(main())
