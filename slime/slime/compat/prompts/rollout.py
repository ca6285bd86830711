"""slime's default rollout: prompts from a data source, in groups, generated and rewarded by our engines.

    data source ─▶ GroupMaker (generate, reward) ─▶ dynamic filter ─▶ a batch ─▶ batch hooks ─▶ SampleGroup ─▶ trainer
        ▲ ▲                │ aborted                     │ not worth it: another prompt in its place
        │ └── add_samples ─┘                             │
        └── room? groups under way and waiting for the trainer are at most --max-staleness updates ahead

Groups are under way all the time, also while the trainer trains and while weights are swapped. With `--max-staleness 0`
a prompt is given out only when everything sampled before is trained: on-policy.

A rollout function in slime's call style makes the groups of a batch itself:

    room for a batch? ─▶ generate_rollout(args, rollout_id, data_source, evaluation=False) ─▶ groups ─▶ reward ─▶ …

A plain one runs on a thread, where it may start an event loop of its own; so the server goes on answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from slime.compat.prompts.batches import BatchMaker
from slime.compat.prompts.evaluation import PromptSets, evaluate
from slime.compat.prompts.groups import GroupMaker
from slime.compat.prompts.hooks import groups_per_batch
from slime.compat.prompts.source import DataSource, tell
from slime.compat.sample import DynamicFilterOutput, Group, RolloutFnTrainOutput, Sample, flatten
from slime.errors import PluginError, RunStalled
from slime.plugins.calling import NamedCall
from slime.progress import Progress
from slime.types import SampleGroup

log = logging.getLogger(__name__)

_POLL_S = 0.05
"""How soon it is noticed that the trainer took something."""


@dataclass(eq=False)
class PromptRun:
    """What a run over prompts has: its data source, what makes groups of it, and how far the run is."""

    source: DataSource
    maker: GroupMaker
    progress: Progress
    eval_sets: PromptSets

    def __post_init__(self) -> None:
        self.hooks, config = self.maker.hooks, self.maker.config
        self.batches = BatchMaker(self.hooks, self.source)
        self._batch_size = config.rollout.rollout_batch_size
        self._group_size = config.rollout.num_rollouts_per_prompt
        self._groups_per_batch = groups_per_batch(config)
        self._num_at_once = config.prompts.over_sampling_batch_size or self._groups_per_batch
        behind = config.checkpoint.publish_interval - 1  # updates that engines may not serve yet
        self._ahead = (config.rollout.max_staleness + 1 - behind) * self._batch_size
        self._under_way: dict[asyncio.Task[Group], int] = {}
        self._kept: list[tuple[Group, int]] = []
        self._reserve: list[tuple[Group, int]] = []
        self._is_exhausted = False

    async def updated(self, step: int) -> Mapping[str, float]:
        """Update `step` was made: figures of the batches since the last one, and of an evaluation if one is due."""
        return {**self.batches.metrics(), **await evaluate(self.maker, self.source, self.eval_sets, step)}

    async def saved(self, step: int, group_ids: tuple[str, ...]) -> None:
        """The checkpoint of `step` is written, and it is the first to hold these groups: the data source's turn."""
        self.batches.settle(group_ids)
        tell(self.source, "save", step)

    def load(self) -> None:
        """Bring the data source to the trainer's checkpoint."""
        self.batches.rollout_id = self.progress.step
        tell(self.source, "load", self.progress.step)

    def has_room(self, num_samples: int) -> bool:
        """Whether so many samples more would still be trained in time."""
        return self.progress.num_pending + num_samples < self._ahead

    def check_is_judged(self) -> None:
        """Raise RunStalled where the reward is switched off: nothing sampled from now on could be trained."""
        if self.maker.is_unjudged:
            raise RunStalled("--custom-rm-path failed again and again and was switched off: see its errors in the log")

    async def batches_of(self, call: NamedCall) -> AsyncGenerator[SampleGroup]:
        """Groups that a function in slime's call style makes, a batch a call; endless."""
        self.load()
        while True:
            self.check_is_judged()
            if not self.has_room(self._batch_size - 1):
                await asyncio.sleep(_POLL_S)
                continue
            began, version = time.monotonic(), self.progress()
            made = await self.hooks.sample(
                call, rollout_id=self.batches.rollout_id, data_source=self.source, evaluation=False
            )
            output = made if isinstance(made, RolloutFnTrainOutput) else RolloutFnTrainOutput(made)
            groups = as_groups(output.samples, call.place)
            await asyncio.gather(*(self.maker.reward(group) for group in groups))
            batch = [(group, version) for group in groups]
            for finished in await self.batches.finish(batch, time.monotonic() - began, output.metrics):
                yield finished

    async def stream(self) -> AsyncGenerator[SampleGroup]:
        """Groups to train on, as they are finished, until the data source has no more prompts."""
        self.load()
        began = time.monotonic()
        try:
            while True:
                self._give_out()
                if self._under_way:
                    await asyncio.wait(self._under_way, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(_POLL_S)
                await self._take_in()
                if batch := self._batch():
                    for group in await self.batches.finish(batch, time.monotonic() - began):
                        yield group
                    began = time.monotonic()
                if (self._is_exhausted or self.maker.is_unjudged) and not self._under_way and not self._kept:
                    self.check_is_judged()
                    log.info("the prompts are exhausted")
                    return
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    def _give_out(self) -> None:
        while len(self._under_way) < self._num_at_once and self._has_room() and not self.maker.is_unjudged:
            groups = self.source.get_samples(1)
            if not groups:
                self._is_exhausted = True
                return
            for group in groups:
                version = self.progress()
                task = asyncio.create_task(self.maker.make(group, self.batches.rollout_id))
                self._under_way[task] = version

    def _has_room(self) -> bool:
        return self.has_room((len(self._under_way) + len(self._kept)) * self._group_size)

    async def _take_in(self) -> None:
        for task in [task for task in self._under_way if task.done()]:
            version = self._under_way.pop(task)
            group = task.result()
            if any(sample.status is Sample.Status.ABORTED for sample in flatten(group)):
                self.source.add_samples([[flatten([member])[0] for member in group]])  # as it gave it: one a member
            elif (verdict := await self._filter(group)).keep:
                self._kept.append((group, version))
            elif verdict.keep_when_insufficient:
                self._reserve.append((group, version))
            else:
                self.batches.drop(group, verdict.reason or "filtered")

    async def _filter(self, group: Group) -> DynamicFilterOutput:
        if all(sample.reward is None for sample in flatten(group)):
            return DynamicFilterOutput(keep=False, reason="unjudged")
        hook = self.hooks.get(name := "dynamic_sampling_filter_path")
        if hook is None:
            return DynamicFilterOutput(keep=True)
        result = await self.hooks.call(name, samples=group)
        if isinstance(result, DynamicFilterOutput):
            return result
        if isinstance(result, bool) or getattr(result, "shape", None) == ():
            return DynamicFilterOutput(keep=bool(result))
        raise PluginError(f"{hook.place} gave {type(result).__name__}; a filter says True or False")

    def _batch(self) -> list[tuple[Group, int]]:
        """A whole batch once there is one; less where the trainer's queue has no room for more."""
        size = self._groups_per_batch
        if self._is_exhausted and not self._under_way and len(self._kept) < size:
            self._kept, self._reserve = self._kept + self._reserve, []
        is_stuck = not self._under_way and (self._is_exhausted or self.maker.is_unjudged or not self._has_room())
        if len(self._kept) < size and not is_stuck:
            return []
        batch, self._kept = self._kept[:size], self._kept[size:]
        return batch


async def generate_rollout(prompts: PromptRun) -> AsyncGenerator[SampleGroup]:
    """Groups of replies to the prompts of `--prompt-data`."""
    async with contextlib.aclosing(prompts.stream()) as groups:
        async for group in groups:
            yield group


def as_groups(samples: Any, where: str) -> list[Group]:
    """What a rollout function in slime's call style gave, as groups.

    Raises:
        PluginError: it is no list of lists of samples.
    """
    if not isinstance(samples, list) or not samples:
        raise PluginError(f"{where} gave {type(samples).__name__} of no groups; it gives a list of groups of samples")
    for group in samples:
        if not isinstance(group, list) or not all(isinstance(sample, Sample) for sample in flatten(group)):
            raise PluginError(f"{where} gave groups that are no lists of samples")
    return [group for group in samples if flatten(group)]
