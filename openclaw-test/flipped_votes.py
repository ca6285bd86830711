"""A judge that is often wrong, as a reward plug-in: what the rule judge says, in three of ten turns turned round.

    python -m openclaw_test.compare … --train-flags "--custom-rm-path openclaw_test.flipped_votes"

Whether a method still learns from such votes says how much it relies on each of them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from slime.judging.rules.judge import RuleJudge
from slime.types import Turn, Verdict

SHARE = 0.3
"""How many votes are wrong."""


async def reward(turn: Turn) -> Verdict:
    """The rule judge's verdict, or its opposite; a conversation's words decide which, so a seed gives the same ones."""
    verdict = await RuleJudge().judge(turn)
    is_wrong = random.Random(f"{turn.messages} {turn.reply}").random() < SHARE
    return replace(verdict, score=-verdict.score) if is_wrong and verdict.score else verdict
