"""Person before plug-in before judge, in one function and through the loop."""

from __future__ import annotations

import itertools

import pytest
from judged_turns import turn_with
from slime.judging.precedence import effective_verdict, judge_with_feedback, verdict_of
from slime.judging.scripted import ScriptedJudge
from slime.types import Feedback, Judgement, Turn, Verdict

PERSON, PLUGIN, JUDGE = Verdict(1.0, judge="person"), Verdict(-1.0, judge="plugin"), Verdict(0.0, judge="llm")


@pytest.mark.parametrize("verdicts", list(itertools.permutations([PERSON, PLUGIN, JUDGE])))
def test_whoever_comes_first_counts_whatever_the_order(verdicts: tuple[Verdict, ...]) -> None:
    assert effective_verdict(verdicts).score == 1.0
    assert effective_verdict([verdict for verdict in verdicts if verdict is not PERSON]).score == -1.0


def test_who_could_not_judge_gives_way_and_nothing_is_a_score_by_default() -> None:
    silent = Verdict(None, judge="person", reason="unreadable")
    assert effective_verdict([silent, JUDGE]).judge == "llm"
    assert effective_verdict([silent]).score is None
    assert effective_verdict([Verdict(1.0, judge="person"), Verdict(-1.0, judge="person")]).score == -1.0


def test_what_others_saw_is_kept() -> None:
    hinted = Verdict(-1.0, judge="llm", hints=("Be brief.",), judgements=(Judgement("llm", -1.0),))
    verdict = effective_verdict([hinted, PERSON])
    assert (verdict.score, verdict.judge, verdict.hint) == (1.0, "person", "Be brief.")
    assert [said.judge for said in verdict.judgements] == ["llm", "person"]


def says(turn: Turn) -> float | None:
    words = str(turn.next_state)
    return None if "???" in words else 1.0 if "Thanks" in words else -1.0


@pytest.mark.parametrize(
    ("next_state", "feedback", "score", "by"),
    [
        ("Thanks!", None, 1.0, "scripted"),
        ("Thanks!", Feedback("thumbs", -1.0), -1.0, "person"),
        (None, Feedback("score", 0.25), 0.25, "person"),
        ("Thanks!", Feedback("text", text="Too long."), -1.0, "person"),
        (None, Feedback("text", text="Thanks, spot on."), 1.0, "person"),
        ("Too long.", Feedback("text", text="???"), -1.0, "scripted"),
        (None, Feedback("text", text="???"), None, "person"),
        ("Thanks!", Feedback("score", 0.5, "Too long."), 0.5, "person"),
    ],
)
async def test_feedback_decides_and_words_are_read_as_the_next_state(
    next_state: str | None, feedback: Feedback | None, score: float | None, by: str
) -> None:
    judge = ScriptedJudge(says)
    _, verdict = await judge_with_feedback(judge, turn_with(next_state), feedback)
    assert (verdict.score, verdict.judge) == (score, by)
    if feedback is not None and feedback.value is not None and next_state is None:
        assert judge.judged == [], "there was nothing to be read"


async def test_words_take_the_place_of_the_next_state_for_whoever_learns_from_it() -> None:
    heard, _ = await judge_with_feedback(ScriptedJudge(says), turn_with("Go on."), Feedback("text", text="Too long."))
    assert heard.next_state == ({"role": "user", "content": "Too long."},)


def test_words_alone_are_no_number() -> None:
    with pytest.raises(ValueError, match="words"):
        verdict_of(Feedback("text", text="Fine."))
