"""Writes an evaluation's report: report.json, a table on the console and in table.txt, curves.png.

rows of PersonaScore, SuiteScores ─▶ write_report ─▶ report.json, table.txt, curves.png
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openclaw_test.report.gains import gain_table, gains
from openclaw_test.suites.measures import IN_A_ROW, Interval
from openclaw_test.suites.scoring import PersonaScore
from openclaw_test.suites.suites import SuiteScore
from rich.console import Console
from rich.table import Table

_LOG_WIDTH = 160

WINDOW = 5
"""Sessions averaged per point of a curve."""


def write_report(
    output_dir: Path,
    settings: Mapping[str, Any],
    rows: Sequence[PersonaScore],
    suites: Mapping[str, Sequence[SuiteScore]],
) -> None:
    """Print the tables and write the report into `output_dir`.

    Args:
        settings: the run's settings, stored with the results.
        suites: by assistant.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    gained = gains(rows)
    report = {
        "settings": dict(settings),
        "rows": [asdict(row) for row in rows],
        "suites": {name: [asdict(score) | {"note": score.note} for score in scores] for name, scores in suites.items()},
        "ranking": ranking(rows),
        "gains": [asdict(gain) | {"share": gain.share} for gain in gained],
    }
    (output_dir / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    tables = [
        *([conversation_table(rows)] if rows else []),
        *([gain_table(gained)] if gained else []),
        *([suite_table(suites)] if suites else []),
    ]
    with (output_dir / "table.txt").open("w", encoding="utf-8") as file:
        for table in tables:
            Console(file=file, width=_LOG_WIDTH).print(table)
    console = Console()
    if not console.is_terminal:  # a log has no fixed width
        console = Console(width=_LOG_WIDTH)
    for table in tables:
        console.print(table)
    if rows:
        draw_curves(output_dir / "curves.png", rows)
    console.print(f"Figures: {output_dir / 'report.json'}", soft_wrap=True, highlight=False)


def ranking(rows: Sequence[PersonaScore]) -> list[str]:
    """Assistants by mean satisfaction over personas, best first."""
    by_assistant: dict[str, list[float]] = {}
    for row in rows:
        by_assistant.setdefault(row.assistant, []).append(row.satisfaction.mean)
    return sorted(by_assistant, key=lambda name: statistics.fmean(by_assistant[name]), reverse=True)


def conversation_table(rows: Sequence[PersonaScore]) -> Table:
    """One row per assistant and persona, best assistant first."""
    table = Table(title="First replies to users with a hidden preference")
    table.add_column("")
    table.add_column("persona")
    for heading in (f"sessions to\n{IN_A_ROW} in a row", "satisfied", "right", "KL", "tokens", "again", "updates"):
        table.add_column(heading, justify="right", no_wrap=True)
    order = ranking(rows)
    for row in sorted(rows, key=lambda row: order.index(row.assistant)):
        table.add_row(
            row.assistant,
            row.persona,
            _sessions(row),
            _interval(row.satisfaction, percent=True),
            _interval(row.accuracy, percent=True),
            "-" if row.kl is None else _interval(row.kl),
            _interval(row.tokens),
            f"{row.repetition.mean:.0%}",
            f"{row.updates:.0f}",
        )
    kinds = sorted({row.satisfaction.kind for row in rows})
    words = {"t": "Student's t over seeds", "wilson": "Wilson's, over the replies of one seed", "none": "none"}
    table.caption = f"± and (–): 95 % confidence intervals, {', '.join(words[kind] for kind in kinds)}"
    if any(row.reached < row.num_seeds for row in rows):
        table.caption += "; ≥ (k/n): reached in k of n seeds, the others count all their sessions"
    if failed := sum(row.failed for row in rows):
        table.caption += f"; {failed} sessions had no reply"
    return table


def _sessions(row: PersonaScore) -> str:
    text = _interval(row.sessions)
    return text if row.reached == row.num_seeds else f"≥{text} ({row.reached}/{row.num_seeds})"


def _interval(interval: Interval, *, percent: bool = False) -> str:
    if percent:
        return f"{interval.mean:.0%} ({100 * interval.low:.0f}–{100 * interval.high:.0f})"
    half = (interval.high - interval.low) / 2
    digits = 1 if interval.mean >= 1 else 2
    return f"{interval.mean:.{digits}f}" + (f"±{half:.{digits}f}" if interval.kind != "none" else "")


def suite_table(suites: Mapping[str, Sequence[SuiteScore]]) -> Table:
    """One row per assistant and suite, with the reasons of failures."""
    table = Table(title="Suites with exact checks")
    for heading in ("", "suite", "solved", "failures", "note"):
        table.add_column(heading)
    for name, scores in suites.items():
        for score in scores:
            reasons = ", ".join(f"{reason} {count}" for reason, count in score.failures.items())
            solved = f"{_interval(score.passed, percent=True)} of {score.passed.num}"
            table.add_row(name, score.suite, solved, reasons, score.note)
    return table


def draw_curves(file: Path, rows: Sequence[PersonaScore]) -> None:
    """Plot satisfaction by session, one panel per persona and one line per assistant."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.persona for row in rows))
    figure, panels = pyplot.subplots(
        len(names), 1, figsize=(9, 2.6 * len(names) + 0.6), sharex=True, squeeze=False, layout="constrained"
    )
    for panel, name in zip(panels[:, 0], names, strict=True):
        for row in rows:
            if row.persona == name:
                panel.plot(range(1, len(row.curve) + 1), smoothed(row.curve), label=row.assistant)
        panel.set_ylim(-0.02, 1.02)
        panel.set_ylabel("satisfied")
        panel.set_title(f"{name}: {next(row.rule for row in rows if row.persona == name)}")
        panel.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    panels[-1, 0].set_xlabel(f"session (mean of the last {WINDOW})")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def smoothed(values: Sequence[float]) -> list[float]:
    """The moving average of the last `WINDOW` values."""
    return [statistics.fmean(values[max(0, n - WINDOW + 1) : n + 1]) for n in range(len(values))]
