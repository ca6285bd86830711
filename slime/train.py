"""`python slime/train.py`: a training run, from the configuration to the last update.

    configuration ─▶ model, hooks, GPUs checked ─▶ Ray ─▶ engines ─▶ server ─▶ trainer ranks ─▶ pipeline
                                                           └────── supervised: what dies is started again

Everything that can be wrong with what the user wrote is found before anything is started. A run resumes
from the newest checkpoint in --save-dir; whatever is killed, nothing that was acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from slime.chat import ChatFormat
from slime.cluster.children import Child, CommandActor
from slime.cluster.fleet import Fleet
from slime.cluster.learner import RankedLearner
from slime.cluster.placement import on_cpu
from slime.cluster.session import ray_session
from slime.cluster.teaching import teaching
from slime.compat.calls import batches_of
from slime.config import Config
from slime.config.conditions import method_name
from slime.config.flags import as_flags
from slime.config.loader import load_config
from slime.config.model_dir import check_model_dir
from slime.data.sample_queue import SampleQueue
from slime.data.source_queue import SourceQueue
from slime.engines.launch import free_port, with_token
from slime.errors import ConfigError, EngineUnavailable, OpenClawError
from slime.judging.drift import WatchedJudge
from slime.judging.llm.chat_model import ChatModel, EngineModel
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.relative import RelativeJudge, SiblingJudge
from slime.judging.plugin import PluginJudge
from slime.judging.rules.judge import RuleJudge
from slime.monitor import Monitor, configure_logging, link_log
from slime.pipeline import Pipeline
from slime.plugins.settings import plugin_settings
from slime.preflight import PROG, Plan, asks_a_model, check
from slime.protocols import Judge
from slime.publisher import Publisher
from slime.rollout.hindsight import hint_source
from slime.rollout.judge_endpoint import judge_model_at, renderer
from slime.store import Store
from slime.tools.offline import import_conversations
from slime.types import SampleGroup
from slime.weights import Versions

log = logging.getLogger("slime.train")

OWNER = "train"
"""Who holds leases in the store; a run started again frees what it held before."""
_SERVER_START_S = 60.0


def main(argv: Sequence[str] | None = None, *, prog: str = PROG, defaults: Mapping[str, Any] | None = None) -> int:
    """The exit status: 0 done or stopped, 1 a failure, 2 a mistake in the settings.

    Args:
        defaults: settings by path that a program which is this one under another name puts in place of ours.
    """
    config = load_config(argv, prog=prog, defaults=defaults)
    run_dir = config.monitor.run_dir
    try:
        log_file = run_dir / "logs" / "training.log"
        configure_logging(config.server.log_level, log_file)
        link_log(log_file, Path("logs/training.log"))
        plan = check(config)
        config = on_cpu(config)
        with ray_session(config.cluster, Path.cwd()):
            asyncio.run(_until_signalled(train(config, plan)))
    except OpenClawError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _queue_type(config: Config) -> type[SampleQueue]:
    """Batches of everybody, or of one user each."""
    is_shared = not config.lora.use_lora or config.lora.adapter_per == "run"
    return SampleQueue if is_shared else SourceQueue


async def train(config: Config, plan: Plan) -> None:
    """Place everything, run until the updates are made, and end what was placed."""
    log_dir = config.monitor.run_dir.resolve() / "logs"
    learner = RankedLearner(config, plan.placement.ranks)
    async with contextlib.AsyncExitStack() as stack:
        attached = tuple(url.strip() for url in config.engine.engine_url.split(",") if url.strip())
        if not attached:
            config = replace(config, engine=with_token(config.engine))
        fleet = Fleet(config.model, config.engine, plan.placement.engines, log_dir, attached, lora=config.lora)
        stack.push_async_callback(fleet.stop)
        await fleet.start()
        supervised = [fleet.supervise]
        if config.cluster.serve:
            server = _server(config, fleet.urls, log_dir)
            stack.push_async_callback(server.stop)
            await server.start()
            supervised.append(server.supervise)
        stack.push_async_callback(learner.stop)
        model = None
        if asks_a_model(config, plan.sampling):
            model = await stack.enter_async_context(_judge_model(config, fleet, plan.placement.judge, log_dir))
        hindsight: dict[str, Any] = {}
        if plan.rollout.asks_for & {"teacher", "hint_source"}:  # a teacher may be an engine of its own
            teacher = await stack.enter_async_context(teaching(config, fleet, plan.placement.teacher, log_dir))
            hindsight = {"teacher": teacher, "hint_source": hint_source(config, model)}
        is_offline = bool(config.rollout.data_path)
        store = await stack.enter_async_context(Store.open(config.server.rl_buffer_dir, appends=is_offline))
        judge = WatchedJudge(_judge(config, plan, model, store))
        if is_offline:
            await _read_conversations(config, store, fleet)
        monitor = Monitor(
            config.monitor.run_dir,
            run_name=config.monitor.run_name or f"openclaw-rl-{method_name(config)}",
            use_wandb=config.monitor.use_wandb,
            wandb_project=config.monitor.wandb_project,
            settings=plugin_settings(config),
        )
        stack.callback(monitor.close)
        prompts = plan.sampling.start(
            config,
            fleet.clients,
            fleet.urls,
            policy_version=lambda: pipeline.policy_version(),
            step=lambda: pipeline.step,
            num_pending=lambda: pipeline.num_pending,
            relative=RelativeJudge(model, config.judge) if model is not None and config.judge.judge_siblings else None,
        )
        pipeline = Pipeline(
            store=store,
            rollout=lambda: _rollout(config, plan, store, judge, pipeline, {"prompts": prompts, **hindsight}),
            learner=learner,
            publisher=Publisher(
                Versions(config.checkpoint.save_dir.resolve()),
                learner,
                fleet.publish,
                in_use=fleet.in_use,
                newest_served=fleet.newest_version,
            ),
            monitor=monitor,
            owner=OWNER,
            rollout_config=config.rollout,
            checkpoint_config=config.checkpoint,
            judge_metrics=judge.metrics,
            queue_type=_queue_type(config),
            follower=prompts,
            until_drained=is_offline,
            ends_when_stalled=plan.sampling.loop != "live",
        )
        await _run(config, pipeline, *(watch() for watch in supervised))


async def _read_conversations(config: Config, store: Store, fleet: Fleet) -> None:
    """Put what --data-path holds into the store, scored by the policy where nobody recorded how likely it was."""
    await import_conversations(
        Path(config.rollout.data_path),
        store,
        ChatFormat.load(config.model.model_path),
        fleet.clients[0],
        adapter=config.lora.shared_adapter,
        min_turns=config.rollout.min_turns,
        num_workers=config.judge.num_judge_workers,
    )


async def _run(config: Config, pipeline: Pipeline, *supervising: Coroutine[Any, Any, None]) -> None:
    """The pipeline to its end, and after it serving if asked; what can no longer be supervised ends the run."""
    watchers = [asyncio.create_task(watch) for watch in supervising]
    training = asyncio.create_task(pipeline.run())
    try:
        await asyncio.wait([training, *watchers], return_when=asyncio.FIRST_COMPLETED)
        if training.done() and training.exception() is None:
            log.info("training done step=%d", pipeline.step)
            if config.cluster.keep_serving:
                await asyncio.wait(watchers, return_when=asyncio.FIRST_COMPLETED)
        for task in (training, *watchers):
            if task.done():
                task.result()
    finally:
        for task in (training, *watchers):
            task.cancel()
        await asyncio.gather(training, *watchers, return_exceptions=True)


def _server(config: Config, engine_urls: list[str], log_dir: Path) -> Child:
    """The OpenAI-compatible server, in front of the engines; capture is what a training run is for."""
    port = config.server.port or free_port()
    serving = replace(
        config,
        engine=replace(config.engine, engine_url=",".join(engine_urls)),
        server=replace(config.server, port=port, enable_rl_intercept=True),
    )
    command = [sys.executable, "-m", "openclaw.server", *as_flags(serving, ["model", "engine", "server", "lora"])]
    secrets = {
        "OPENCLAW_API_KEY": config.server.api_key,
        "OPENCLAW_ADMIN_KEY": config.server.admin_key,
        "ENGINE_TOKEN": config.engine.engine_token,
    }
    url = f"http://{config.server.host}:{port}"

    async def is_up() -> None:
        await _until_ready(f"{url}/readyz")
        log.info("serving url=%s/v1", url)

    return Child("server", CommandActor, lambda: (command, str(log_dir / "server.log"), secrets), is_up)


async def _until_ready(url: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SERVER_START_S):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.1)
    raise EngineUnavailable(f"the server did not answer at {url} within {_SERVER_START_S:g} s; see logs/server.log")


def _judge(config: Config, plan: Plan, model: ChatModel | None, store: Store) -> Judge:
    """The judge that was asked for: a plug-in, a model, or the rules."""
    if plan.reward is not None:
        return PluginJudge(plan.reward, timeout_s=config.judge.judge_timeout_s)
    if config.judge.judge == "llm":
        assert model is not None  # it was asked for
        alone = LlmJudge(model, config.judge)
        compares = config.judge.judge_siblings
        return SiblingJudge(alone, RelativeJudge(model, config.judge), store) if compares else alone
    return RuleJudge()


@contextlib.asynccontextmanager
async def _judge_model(config: Config, fleet: Fleet, gpus: str, log_dir: Path) -> AsyncIterator[ChatModel]:
    """The model that is asked: at a URL, on an engine of its own (frozen), or the policy (current)."""
    if config.judge.judge_url:
        tokenizer_dir = config.judge.judge_model_path or config.model.model_path
        async with judge_model_at(config.judge, tokenizer_dir) as there:
            yield there
    elif config.judge.judge_model_path:
        check_model_dir(config.judge.judge_model_path)
        model = replace(config.model, model_path=config.judge.judge_model_path)
        bench = Fleet(model, config.engine, (gpus,), log_dir / "judge")
        try:
            await bench.start()
            yield EngineModel(bench.clients[0], renderer(model.model_path), Path(model.model_path).name)
        finally:
            await bench.stop()
    else:
        yield EngineModel(fleet.clients[0], renderer(config.model.model_path))


def _rollout(
    config: Config, plan: Plan, store: Store, judge: Judge, pipeline: Pipeline, further: Mapping[str, Any]
) -> AsyncIterator[SampleGroup]:
    """The stream of samples of the method that is trained."""
    offered = {
        "store": store,
        "judge": judge,
        "owner": OWNER,
        "policy_version": pipeline.policy_version,
        "config": config,
        **further,
    }
    if plan.sampling.loop == "slime":
        return batches_of(plan.rollout, further["prompts"], batch_size=config.rollout.rollout_batch_size)
    samples: AsyncIterator[SampleGroup] = plan.rollout(offered)
    return samples


async def _until_signalled(work: Awaitable[None]) -> None:
    """Do the work; SIGTERM or SIGINT ends it in order, a second one at once."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if task.cancelling():
            os._exit(130)
        log.info("stopping")
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        await task


if __name__ == "__main__":
    sys.exit(main())
