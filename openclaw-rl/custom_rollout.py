"""Binary RL's rollout: turns every turn whose next state has a score into a sample.

python slime/train.py --rollout-function-path openclaw-rl/custom_rollout.py …
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from slime.rollout.context import RolloutContext
from slime.rollout.live import live_samples, scored_sample
from slime.types import SampleGroup


def generate_rollout(ctx: RolloutContext) -> AsyncGenerator[SampleGroup]:
    """Groups of one sample, as turns are judged."""
    return live_samples(ctx, scored_sample)
