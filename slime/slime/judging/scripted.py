"""A scripted judge, for tests, demos and dry runs of everything around a judge."""

from __future__ import annotations

from collections.abc import Callable

from slime.types import Turn, Verdict


class ScriptedJudge:
    """Scores turns with a function of yours.

    >>> judge = ScriptedJudge(lambda turn: 1.0 if "bold" not in turn.completion.text else -1.0)

    Args:
        script: gives a score, a whole verdict, or None for a judge that could not.

    Attributes:
        judged: ids of the turns judged so far, in order.
    """

    def __init__(self, script: Callable[[Turn], float | Verdict | None]) -> None:
        self._script = script
        self.judged: list[str] = []

    async def judge(self, turn: Turn) -> Verdict:
        self.judged.append(turn.turn_id)
        said = self._script(turn)
        if isinstance(said, Verdict):
            return said
        reason = "scripted" if said is not None else "scripted to fail"
        return Verdict(score=said, votes=(said,), judge="scripted", reason=reason)
