"""The replies to one prompt, rewarded by comparison: `--judge llm --judge-siblings` in place of `--custom-rm-path`.

    Group ─▶ replies that are finished and have no reward ─ RelativeJudge ─▶ points, −1..1, adding up to 0 ─▶ rewards
                                                   ▲          │ judge out
                                                   └─ pause ◀─┘

In a group of equals every reward is 0.0, and so is every advantage that compares them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict

from slime.compat.sample import Group, Sample, flatten
from slime.judging.llm.relative import RelativeJudge
from slime.judging.retry import Deferrals

log = logging.getLogger(__name__)

_FINISHED = (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)


class GroupComparer:
    """Gives rewards to the replies of a group.

    Args:
        num_workers: groups compared at once.
    """

    def __init__(self, judge: RelativeJudge, num_workers: int) -> None:
        self._judge = judge
        self._free = asyncio.Semaphore(num_workers)
        self._deferrals = Deferrals()

    async def reward(self, group: Group) -> None:
        """Compare what is finished and has no reward; while the judge is out the group waits.

        A reply that there is nothing to compare with, or that the judge cannot place, stays without.
        """
        replies = [parts for entry in group if _is_waiting(parts := flatten([entry]))]
        if len(replies) < 2:
            return
        first = replies[0][0]
        request = [{"role": "user", "content": first.prompt}] if isinstance(first.prompt, str) else first.prompt
        said = [{"role": "assistant", "content": "".join(part.response for part in parts)} for parts in replies]
        name = f"group{first.group_index}"
        async with self._free:
            while True:
                verdicts = await self._judge.rank_replies(request, said, name)
                if self._deferrals.is_final(name, verdicts[0]):
                    break
                await asyncio.sleep(self._deferrals.pause_s)
        if not verdicts[0].is_judged:
            log.warning("replies not compared group=%s reason=%s", first.group_index, verdicts[0].reason)
        for parts, verdict in zip(replies, verdicts, strict=True):
            for part in parts:
                part.reward = verdict.score
                part.metadata["reward_details"] = {"judgements": [asdict(said) for said in verdict.judgements]}


def _is_waiting(parts: list[Sample]) -> bool:
    """Whether a trajectory, cut into these, is finished and has no reward yet."""
    return bool(parts) and all(part.reward is None and part.status in _FINISHED for part in parts)
