"""Binary RL's rollout: every turn whose next state says something becomes a sample, worth what it says.

python slime/train.py --rollout-function-path openclaw-rl/custom_rollout.py …
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from slime.config import Config
from slime.protocols import Judge
from slime.rollout.live import judged_samples
from slime.store import Store
from slime.types import SampleGroup


async def generate_rollout(
    store: Store, judge: Judge, owner: str, policy_version: Callable[[], int], config: Config
) -> AsyncIterator[SampleGroup]:
    """Groups of one sample, as turns are judged."""
    groups = judged_samples(
        store, judge, owner=owner, policy_version=policy_version, rollout=config.rollout, judging=config.judge
    )
    async for group in groups:
        yield group
