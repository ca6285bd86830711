"""Rewards of the replies to a prompt: each by itself or all at once by a plug-in, or by a model that compares them.

    Group ─▶ finished, without a reward ─▶ SampleJudge    --custom-rm-path, with --group-rm all replies in one call
                                        └▶ GroupComparer  --judge llm --judge-siblings: −1..1, adding up to 0

A reply that gets no reward is not trained. In a group of equals the comparer gives 0.0 to each, and an advantage that
compares them is 0.0, too.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from functools import partial
from typing import Any

from slime.compat.prompts.hooks import PromptHooks
from slime.compat.sample import Group, Sample, flatten
from slime.judging.llm.relative import RelativeJudge
from slime.judging.plugin import PluginJudge
from slime.judging.retry import Deferrals
from slime.plugins.rewards import RewardHook, offered_of
from slime.types import Message

log = logging.getLogger(__name__)


class SampleJudge(PluginJudge):
    """Rewards by a plug-in, to which `next_state` is empty; one that fails again and again is switched off.

    Args:
        hooks: whose `args` the plug-in is offered.
    """

    def __init__(self, reward: RewardHook, hooks: PromptHooks, *, timeout_s: float, reward_key: str) -> None:
        super().__init__(reward, timeout_s=timeout_s, reward_key=reward_key)
        self._hooks = hooks

    async def reward(self, group: Group) -> None:
        """Reward what is finished and has no reward; where the plug-in fails it stays without."""
        waiting = [sample for sample in flatten(group) if _is_waiting(sample)]
        if self.hook.takes_groups and waiting:
            rows = [_offered(sample) for sample in waiting]
            verdicts = await self._ask(f"group={waiting[0].group_index}", len(waiting), samples=waiting, rows=rows)
        else:
            each = (self._ask(f"sample={sample.index}", None, **_offered(sample)) for sample in waiting)
            verdicts = [verdict for (verdict,) in await asyncio.gather(*each)]
        for sample, verdict in zip(waiting, verdicts, strict=True):
            sample.reward = verdict.score
            if verdict.details:
                sample.metadata["reward_details"] = dict(verdict.details)

    def _ask(self, what: str, number: int | None, **values: Any) -> Any:
        offered = {**values, "args": self._hooks.args, "config": self._hooks.settings}
        return self.ask(what, partial(self.hook.ask, offered, self.timeout_s), number)


class GroupComparer:
    """Rewards by comparison.

    Args:
        num_workers: groups compared at once.
    """

    is_disabled = False

    def __init__(self, judge: RelativeJudge, num_workers: int) -> None:
        self._judge = judge
        self._free = asyncio.Semaphore(num_workers)
        self._deferrals = Deferrals()

    async def reward(self, group: Group) -> None:
        """Compare what is finished and has no reward; while the judge is out the group waits.

        A reply that there is nothing to compare with, or that the judge cannot place, stays without.
        """
        trajectories = [flatten([entry]) for entry in group]
        replies = [parts for parts in trajectories if parts and all(map(_is_waiting, parts))]
        if len(replies) < 2:
            return
        first = replies[0][0]
        said = [{"role": "assistant", "content": "".join(part.response for part in parts)} for parts in replies]
        name = f"group{first.group_index}"
        async with self._free:
            while True:
                verdicts = await self._judge.rank_replies(_messages(first), said, name)
                if self._deferrals.is_final(name, verdicts[0]):
                    break
                await asyncio.sleep(self._deferrals.pause_s)
        if not verdicts[0].is_judged:
            log.warning("replies not compared group=%s reason=%s", first.group_index, verdicts[0].reason)
        for parts, verdict in zip(replies, verdicts, strict=True):
            for part in parts:
                part.reward = verdict.score
                part.metadata["reward_details"] = {"judgements": [asdict(said) for said in verdict.judgements]}


def _is_waiting(sample: Sample) -> bool:
    """Whether it is finished and has no reward yet."""
    return sample.reward is None and sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)


def _messages(sample: Sample) -> list[Message]:
    prompt = sample.prompt
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _offered(sample: Sample) -> dict[str, Any]:
    reply = {"role": "assistant", "content": sample.response}
    return offered_of(_messages(sample), sample.response, reply) | {"turn": None, "sample": sample}
