"""Precedence of verdicts: a person's, then the reward plug-in's, then a judge's.

feedback with a value ─▶ Verdict by "person" ─┐
feedback in words ─▶ judge reads them as the   ├─▶ effective_verdict ─▶ the one that is stored and trained
                     next state: by "person" ──┤
plug-in, judge ────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slime.protocols import Judge
from slime.types import Feedback, Turn, Verdict

PERSON, PLUGIN = "person", "plugin"
_RANKS = (PERSON, PLUGIN)
"""From the top; every other judge comes after these."""


def effective_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict that counts: by whoever comes first and has a score; of equals the last.

    What others saw is not lost: their hints where it has none, and all their judgements.

    >>> effective_verdict([Verdict(1.0, judge="llm"), Verdict(-1.0, judge="person")]).score
    -1.0
    """
    ranked = sorted(reversed(verdicts), key=lambda verdict: (not verdict.is_judged, _rank(verdict)))
    best, *others = ranked
    return replace(
        best,
        hints=next((verdict.hints for verdict in ranked if verdict.hints), ()),
        details={name: fact for verdict in reversed(ranked) for name, fact in verdict.details.items()},
        judgements=tuple(said for verdict in verdicts for said in verdict.as_judgements())
        if others
        else best.judgements,
        retry_after_s=_longest(verdict.retry_after_s for verdict in verdicts),
        hint_retry_after_s=_longest(verdict.hint_retry_after_s for verdict in verdicts),
    )


def _rank(verdict: Verdict) -> int:
    return _RANKS.index(verdict.judge) if verdict.judge in _RANKS else len(_RANKS)


def _longest(waits: Iterable[float | None]) -> float | None:
    return max((wait for wait in waits if wait is not None), default=None)


def verdict_of(feedback: Feedback) -> Verdict:
    """What a person's number says. Raises ValueError for words alone."""
    if feedback.value is None:
        raise ValueError("words have to be read by a judge")
    reason = f"a person gave {feedback.value:g}"
    return Verdict(feedback.value, (feedback.value,), judge=PERSON, reason=reason, zero_counts=True)


async def judge_with_feedback(judge: Judge, turn: Turn, feedback: Feedback | None) -> tuple[Turn, Verdict]:
    """A turn's verdict by the precedence above, and the turn as it was judged.

    Words take the place of the next state, for the judge and for whoever learns from it afterwards. The judge is asked
    even where a number decides: it may see a hint, and what it says is kept to be compared.
    """
    if feedback is None:
        return turn, await judge.judge(turn)
    verdicts: list[Verdict] = []
    heard = turn
    if feedback.text.strip():
        heard = replace(turn, next_state=({"role": "user", "content": feedback.text},))
        read = await judge.judge(heard)
        verdicts.append(read if feedback.value is not None else replace(read, judge=PERSON))
    if turn.next_state and not any(verdict.is_judged for verdict in verdicts):
        verdicts.append(await judge.judge(turn))
    if feedback.value is not None:
        verdicts.append(verdict_of(feedback))
    return heard, effective_verdict(verdicts)
