"""A plug-in that turns votes round: as many as it says, the same ones each time."""

from __future__ import annotations

from openclaw_test.flipped_votes import SHARE, reward
from slime.judging.rules.judge import RuleJudge
from slime.plugins.rewards import load_reward
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan


def turn(number: int) -> Turn:
    return Turn(
        turn_id=f"turn{number}",
        session_id="session",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=({"role": "user", "content": f"What is {number} and one?"},),
        prompt_ids=(1,),
        completion=Completion((2,), (-0.1,), "It is.", "stop", (VersionSpan(0, 0, 1),)),
        sampling=SamplingParams(),
        reply={"role": "assistant", "content": f"{number + 1}"},
        next_state=({"role": "user", "content": "Thanks, perfect!"},),
    )


async def test_three_votes_of_ten_are_turned_round_and_always_the_same() -> None:
    assert (await RuleJudge().judge(turn(0))).score == 1.0
    scores = [(await reward(turn(number))).score for number in range(1000)]
    assert set(scores) == {1.0, -1.0}
    # three standard deviations of a thousand draws are .043
    assert abs(scores.count(-1.0) / len(scores) - SHARE) < 0.043
    assert scores == [(await reward(turn(number))).score for number in range(1000)]


def test_it_is_a_reward_plug_in() -> None:
    assert load_reward("openclaw_test.flipped_votes", {}).is_async
