"""A noisy judge as a reward plug-in: the rule judge's verdict with 30 % of the signs flipped.

    python -m openclaw_test.compare … --train-flags "--custom-rm-path openclaw_test.flipped_votes"

Tests how robust a method is to wrong verdicts.
"""

from __future__ import annotations

import random
from dataclasses import replace

from slime.judging.rules.judge import RuleJudge
from slime.types import Turn, Verdict

SHARE = 0.3
"""The share of flipped verdicts."""


async def reward(turn: Turn) -> Verdict:
    """The rule judge's verdict, or its opposite; the conversation seeds the choice, so it is deterministic."""
    verdict = await RuleJudge().judge(turn)
    is_wrong = random.Random(f"{turn.messages} {turn.reply}").random() < SHARE
    return replace(verdict, score=-verdict.score) if is_wrong and verdict.score else verdict
