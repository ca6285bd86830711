"""The status of a run, in one small file that any program may read: `run_dir/status.json`.

    pipeline ─ after every update, and every few seconds ─▶ status.json ─▶ openclaw-rl status

The file is replaced whole, so a reader finds the old one or the new one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from slime.errors import ConfigError

STATUS_FILE = "status.json"

State = Literal["starting", "running", "stalled", "done", "failed", "stopped"]


@dataclass(frozen=True)
class Status:
    """A run at a moment.

    >>> Status("stalled", step=5, version=5, made=952, trained=80, dropped={"stale": 872}, reason="872 of 872 …")

    Attributes:
        step: updates made.
        version: the newest that engines serve.
        made: samples since the run was started: those trained, those waiting and those dropped.
        waiting: of them, in the queue of the trainer.
        dropped: never to be trained, by reason.
        reason: why nothing is trained, or what ended the run; empty while all is well.
        written_at: seconds since 1970.
    """

    state: State
    step: int = 0
    version: int = 0
    made: int = 0
    trained: int = 0
    waiting: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    written_at: float = 0.0


def write_status(run_dir: Path, status: Status) -> None:
    """Replace the file; the time is filled in."""
    partial = run_dir / f".{STATUS_FILE}.partial"
    partial.write_text(json.dumps(asdict(status) | {"written_at": time.time()}, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, run_dir / STATUS_FILE)


def read_status(run_dir: Path) -> Status:
    """What the run last said of itself.

    Raises:
        ConfigError: there is no such file, or it is not one of ours.
    """
    file = run_dir / STATUS_FILE
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        return Status(**content)
    except FileNotFoundError:
        raise ConfigError(f"{file}: no run has written its status there; name its --run-dir") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file}: not the status of a run: {error}") from None


def describe(status: Status) -> str:
    """A status for people: a line for each figure, the reason last."""
    age_s = time.time() - status.written_at
    dropped = ", ".join(f"{reason} {number}" for reason, number in status.dropped.items())
    lines = [
        f"state    {status.state} ({age_s:.0f} s ago)",
        f"updates  {status.step}",
        f"serves   version {status.version}",
        f"samples  {status.made} made, {status.trained} trained, {status.waiting} waiting",
        f"dropped  {dropped or 'none'}",
    ]
    return "\n".join([*lines, *([f"reason   {status.reason}"] if status.reason else [])])
