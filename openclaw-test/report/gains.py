"""Compares the gain of LoRA with that of full fine-tuning, from the same model with the same updates.

rows of PersonaScore: untrained, opd, opd-lora ─▶ gains ─▶ Gain(opd-lora of opd, before, after …) ─▶ gain_table
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_test.methods import ADAPTED
from openclaw_test.suites.scoring import PersonaScore
from rich.table import Table

UNTRAINED = "untrained"


@dataclass(frozen=True, slots=True)
class Gain:
    """The gains of one method for one persona.

    >>> Gain("opd", "student", before=0.06, full=0.97, adapter=0.96, accuracy_lost=0.01).share
    0.989…

    Attributes:
        before, full, adapter: satisfaction of the untrained model, with all weights trained, and with an adapter.
        accuracy_lost: on held-out problems, by the adapter, against the untrained model.
    """

    method: str
    persona: str
    before: float
    full: float
    adapter: float
    accuracy_lost: float

    @property
    def share(self) -> float | None:
        """The adapter's gain as a share of the full one; None without a full gain."""
        gained = self.full - self.before
        return (self.adapter - self.before) / gained if gained > 0 else None


def gains(rows: Sequence[PersonaScore]) -> list[Gain]:
    """The gain for each method and persona that was measured untrained, with all weights and with an adapter."""
    found = {(row.assistant, row.persona): row for row in rows}
    return [
        Gain(
            method=row.assistant,
            persona=row.persona,
            before=before.satisfaction.mean,
            full=row.satisfaction.mean,
            adapter=adapter.satisfaction.mean,
            accuracy_lost=before.accuracy.mean - adapter.accuracy.mean,
        )
        for row in rows
        if (before := found.get((UNTRAINED, row.persona)))
        and (adapter := found.get((row.assistant + ADAPTED, row.persona)))
    ]


def gain_table(measured: Sequence[Gain]) -> Table:
    """One row per gain."""
    table = Table(title="Satisfaction gained by LoRA, relative to full fine-tuning")
    for heading in ("method", "persona"):
        table.add_column(heading)
    for heading in ("before", "all weights", "adapter", "share", "right, change"):
        table.add_column(heading, justify="right")
    for gain in measured:
        table.add_row(
            gain.method,
            gain.persona,
            *(f"{value:.1%}" for value in (gain.before, gain.full, gain.adapter)),
            "-" if gain.share is None else f"{gain.share:.0%}",
            f"{-100 * gain.accuracy_lost:+.1f} points",
        )
    return table
