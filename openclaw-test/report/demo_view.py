"""The demo's output: a live screen during the run, a table and a plot at the end.

exchanges, verdicts, metrics ─▶ DemoView (rich)      first replies, metrics ─▶ curves.png (matplotlib)
"""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openclaw_test.people.sessions import Exchange
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from slime.types import Turn, Verdict

WINDOW = 24
"""Replies averaged per point of a curve."""
_MARKS = {True: ("+1", "green"), False: ("−1", "red")}


class DemoView:
    """A live screen, used as a context manager; without a terminal it prints one line per update.

    Args:
        num_updates: of the whole demo.
    """

    def __init__(self, num_updates: int) -> None:
        self._num_updates = num_updates
        self._console = Console()
        self._exchanges: deque[Exchange] = deque(maxlen=6)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._last_step = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def exchange(self, exchange: Exchange) -> None:
        """Add a request and its reply."""
        self._exchanges.append(exchange)

    def update(
        self,
        metrics: Sequence[Mapping[str, Any]],
        first_replies: Sequence[Sequence[float]],
        judged: Sequence[tuple[Turn, Verdict]],
    ) -> None:
        """Show the current state; `first_replies` as in `demo.Progress`."""
        step = int(metrics[-1]["step"]) if metrics else 0
        version = int(metrics[-1].get("weights/version", step)) if metrics else 0
        recent = [row[1] for row in first_replies[-WINDOW:]]
        score = statistics.fmean(recent) if recent else 0.0
        if self._console.is_terminal:
            self._live.update(self._screen(step, version, score, metrics, judged))
        elif step != self._last_step:
            self._console.print(
                f"update {step:2}/{self._num_updates}  liked without asking {score:4.0%}  weights v{version}"
            )
        self._last_step = step

    def _screen(
        self,
        step: int,
        version: int,
        score: float,
        metrics: Sequence[Mapping[str, Any]],
        judged: Sequence[tuple[Turn, Verdict]],
    ) -> Group:
        facts = Table.grid(padding=(0, 2))
        facts.add_row("update", f"{step} of {self._num_updates}", ProgressBar(self._num_updates, step, width=24))
        facts.add_row("weights served", f"v{version}")
        facts.add_row("liked without asking", f"{score:.0%}", ProgressBar(1.0, score, width=24))
        if metrics:
            newest = metrics[-1]
            for name in ("reward/mean", "loss/kl", "train/grad_norm", "weights/publish_s"):
                if name in newest:
                    facts.add_row(name, f"{newest[name]:.3g}")
        talk = Text()
        for exchange in self._exchanges:
            talk.append(f"{exchange.user}: ", style="bold cyan").append(f"{_line(exchange.request)}\n")
            answer = exchange.reply.text if exchange.reply else exchange.error
            talk.append("model: ", style="bold").append(f"{_line(answer)}\n")
        verdicts = Table.grid(padding=(0, 1))
        for turn, verdict in judged[-8:]:
            score_of = verdict.score or 0.0
            mark, colour = _MARKS[score_of > 0] if score_of else ("0", "dim")
            verdicts.add_row(Text(mark, style=colour), _line(turn.completion.text, 34), Text(verdict.reason, "dim"))
        return Group(
            Panel(talk, title="conversations"),
            Columns([Panel(facts, title="learning"), Panel(verdicts, title="verdicts")]),
        )


def _line(text: str, width: int = 100) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def print_summary(console: Console, summary: Mapping[str, Any], run_dir: Path) -> None:
    """Print the final table, with the figures of summary.json, and the commands to try next."""
    table = Table(title="Replies to held-out problems, before and after training")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for rule, shares in summary["preferences"].items():
        table.add_row(f"replies that are {rule}", f"{shares['before']:.0%}", f"{shares['after']:.0%}")
    table.add_row("right answers", f"{summary['accuracy_before']:.0%}", f"{summary['accuracy_after']:.0%}")
    table.add_row("updates", "", str(summary["steps"]))
    table.add_row("turns trained on", "", str(summary["samples"]))
    table.add_row("requests, failed", "", f"{summary['requests']}, {summary['requests_failed']}")
    table.add_row("seconds", "", f"{summary['seconds']:.0f}")
    console.print(table)
    console.print(f"Curves: {run_dir / 'curves.png'}   Figures: {run_dir / 'summary.json'}\n")
    weights = run_dir / "checkpoints" / "checkpoint-latest" / "weights"
    console.print("Serve the trained model yourself and ask it a sum:")
    console.print(f"  .venv/bin/python -m openclaw.server --model-path {weights} --port 8000", soft_wrap=True)
    question = "Mia has 3 pens and gets 4 more. How many pens does Mia have now?"
    body = json.dumps({"messages": [{"role": "user", "content": question}]})
    console.print(
        f"  curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        soft_wrap=True,
        highlight=False,
    )


def draw_curves(file: Path, first_replies: Sequence[Sequence[float]], metrics: Sequence[Mapping[str, Any]]) -> None:
    """Plot satisfaction and accuracy by update, and the KL to the initial model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    updates = sorted({int(row[0]) for row in first_replies})
    for column, label in ((1, "liked without asking"), (2, "right answer")):
        means = [statistics.fmean(row[column] for row in first_replies if int(row[0]) == update) for update in updates]
        top.plot(updates, means, marker="o", label=label)
    top.set_ylim(-0.02, 1.02)
    top.set_ylabel("share of first replies")
    top.set_title("First replies during training")
    top.legend()
    steps = [entry["step"] for entry in metrics]
    bottom.plot(steps, [entry.get("loss/kl", 0.0) for entry in metrics], marker="o", label="KL to the initial model")
    bottom.plot(steps, [entry.get("reward/mean", 0.0) for entry in metrics], marker="o", label="mean score of a batch")
    bottom.set_xlabel("update")
    bottom.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
