"""Logging and metrics of a run: log lines, `metrics.jsonl`, Weights & Biases.

    logging "step step=3 reward/mean=0.4"        ─▶ stderr, and run_dir/logs/training.log
    Monitor.record(step, {"loss/total": …, …})   ─▶ run_dir/metrics.jsonl, the log, Weights & Biases if asked

The files are the truth; the console and Weights & Biases are views of them. Nothing leaves the machine
unless `use_wandb` is set, and then only where WANDB_MODE says; it is offline until told otherwise.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from slime.private_files import make_private_dir, open_private

OURS = ("slime", "openclaw", "openclaw_rl", "openclaw_opd", "openclaw_combine", "openclaw_test")
"""The loggers that `configure_logging` speaks for."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_MAX_LINE = 2_000
_MAX_TRACEBACK_LINES = 60
log = logging.getLogger(__name__)

PUBLISHED_NAMES = (
    ("gradient/norm", "train/grad_norm"),
    ("learning_rate", "train/learning_rate"),
    ("loss/binary", "loss/binary_loss"),
    ("loss/opd", "loss/opd_loss"),
)
"""What published pages call a figure, and what it is called here; a published loss names its parts so."""

_HEADLINE = ("reward/mean", "loss/total", "loss/kl", "train/grad_norm", "queue/staleness_mean", "weights/publish_s")


def configure_logging(level: str = "info", log_file: Path | None = None) -> None:
    """Send our log lines to stderr, and to `log_file` if given. Called once, by an entry point."""
    handlers: list[logging.Handler] = []
    if sys.stderr.isatty():
        from rich.console import Console  # a server's start does not wait for what it seldom needs
        from rich.logging import RichHandler

        handlers.append(RichHandler(console=Console(stderr=True), show_path=False))
    else:
        handlers.append(_plain_handler(sys.stderr))
    if log_file is not None:
        handlers.append(_plain_handler(io.TextIOWrapper(open_private(log_file), encoding="utf-8")))
    for handler in handlers:
        handler.addFilter(_one_line)
    for name in OURS:
        logger = logging.getLogger(name)
        logger.setLevel(level.upper())
        logger.propagate = False
        logger.handlers = list(handlers)


def _plain_handler(stream: TextIO) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(_FORMAT))
    return handler


def _one_line(record: logging.LogRecord) -> bool:
    """Paths, ids and errors hold what clients sent: a line of the log is one line, of a bounded length."""
    record.msg, record.args = escaped(record.getMessage()), ()
    return True


def escaped(text: str) -> str:
    """The text without control characters, e.g. `a\\nb` for two lines, and no longer than `_MAX_LINE`."""
    shown = text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}… ({len(text)} characters)"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


class _Formatter(logging.Formatter):
    """Tracebacks keep their lines, indented, so that none of them looks like a line of ours."""

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()[-_MAX_TRACEBACK_LINES:]
        return "\n".join(f"    | {escaped(line)}" for line in lines)


class Monitor:
    """Writes the figures of a run.

    Attributes:
        run_dir: holds `metrics.jsonl`, one object per update: `{"step": 3, "time": …, "loss/total": …}`.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        run_name: str = "",
        use_wandb: bool = False,
        wandb_project: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        make_private_dir(run_dir)
        self.run_dir = run_dir
        self._file = io.TextIOWrapper(open_private(run_dir / "metrics.jsonl"), encoding="utf-8")
        self._wandb: Any = None
        if use_wandb:
            import wandb

            self._wandb = wandb.init(
                project=wandb_project,
                name=run_name or None,
                config={n: str(value) if isinstance(value, Path) else value for n, value in (settings or {}).items()},
                dir=str(run_dir),
                mode=os.environ.get("WANDB_MODE", "offline"),
            )

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the figures of update `step`; they are on disk when this returns."""
        also = {theirs: metrics[ours] for theirs, ours in PUBLISHED_NAMES if ours in metrics and theirs not in metrics}
        metrics = {**metrics, **also}
        line = {"step": step, "time": time.time(), **metrics}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        shown = " ".join(f"{name}={metrics[name]:.4g}" for name in _HEADLINE if name in metrics)
        log.info("step step=%d %s", step, shown)
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=step)

    def close(self) -> None:
        self._file.close()
        if self._wandb is not None:
            self._wandb.finish()


def link_log(log_file: Path, link: Path) -> None:
    """Make `link` lead to the log of this run, unless something that is no such link is there.

    `tail -f ./logs/training.log` is what published pages tell people to type where they started a run.
    """
    with contextlib.suppress(OSError):  # a convenience: where nothing may be written, the log is where it is
        if log_file.resolve() == link.absolute() or (link.exists() and not link.is_symlink()):
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(log_file.resolve())


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The figures of a run so far, one entry per update of the weights that are trained now.

    A step stands twice where a run was killed after training it and before its checkpoint: the newer entry counts, and
    those of later updates that the kill undid do not.
    """
    path = run_dir / "metrics.jsonl"
    by_step: dict[int, dict[str, Any]] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line a kill cut short
                continue
            if entry["step"] in by_step:
                by_step = {step: earlier for step, earlier in by_step.items() if step < entry["step"]}
            by_step[entry["step"]] = entry
    return [by_step[step] for step in sorted(by_step)]
