"""Rollout functions in slime's call style, a batch a call, as the stream of samples that the pipeline reads.

    room for a batch? ─▶ generate_rollout(args, rollout_id, data_source, evaluation=False) ─▶ groups ─▶ SampleGroup, …

A plain function runs on a thread, where it may start an event loop of its own; so the server goes on answering.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from slime.compat.hook_engines import arguments_now, check_sampled_by
from slime.compat.prompts.rollout import PromptRun, as_groups
from slime.compat.sample import RolloutFnTrainOutput, flatten
from slime.plugins.calling import NamedCall
from slime.plugins.loading import describe
from slime.types import SampleGroup

_POLL_S = 0.05


async def batches_of(call: NamedCall, prompts: PromptRun, *, batch_size: int) -> AsyncGenerator[SampleGroup]:
    """Groups to train on, a call's at a time; endless.

    Args:
        batch_size: samples that one call gives; the next call waits until so many more would be trained in time.

    Raises:
        PluginError: the function failed, took too long, or gave no groups of samples.
        RunStalled: the reward was switched off.
    """
    prompts.load()
    prompts.batches.rollout_id = prompts.progress.step
    place = describe(call.function)
    while True:
        prompts.check_is_judged()
        if not prompts.has_room(batch_size - 1):
            await asyncio.sleep(_POLL_S)
            continue
        began, version = time.monotonic(), prompts.progress()
        maker = prompts.maker
        args = await arguments_now(maker.args)
        offered = {"args": args, "config": maker.settings, "data_source": prompts.source}
        output = await maker.hooks.call(call, offered | {"rollout_id": prompts.batches.rollout_id, "evaluation": False})
        metrics = output.metrics if isinstance(output, RolloutFnTrainOutput) else None
        groups = as_groups(output.samples if isinstance(output, RolloutFnTrainOutput) else output, place)
        check_sampled_by(args.weight_version, flatten(groups), place)
        await asyncio.gather(*(maker.reward(group) for group in groups))
        batch = [(group, version) for group in groups]
        for finished in await prompts.batches.finish(batch, time.monotonic() - began, metrics):
            yield finished
