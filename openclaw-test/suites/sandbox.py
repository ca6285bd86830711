"""Runs an untrusted Python function in a restricted process and returns its results or the failure.

    source, function, cases ─▶ python -I -S program.py (sets its limits, imports the source, calls) ─▶ JSON of results

The expected values stay in the parent process, so the code cannot read them. The child has an empty environment, a
temporary directory, and limits on time, memory, files and processes. That contains accidents, not attackers: the code
still has the network and this user's read access.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 5.0
_MEMORY_BYTES = 512 << 20
_FILE_BYTES = 1 << 20

_PROGRAM = """\
import json, resource, sys
for name, bound in (("CPU", 4), ("AS", {memory}), ("FSIZE", {file_size}), ("NOFILE", 16), ("NPROC", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (bound, bound))
sys.path.insert(0, {folder!r})
from candidate import {function}
print("\\n" + json.dumps([{function}(*case) for case in json.loads({cases!r})]))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of running a function.

    >>> Outcome(results=[3, 7], failure="")

    Attributes:
        results: one per case; None on failure.
        failure: `timeout`, `error` or `no result`; empty on success.
        details: the last line of stderr, or of stdout without a result.
    """

    results: list[Any] | None
    failure: str
    details: str = ""


def call_function(source: str, function: str, cases: Sequence[Sequence[Any]], timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run `source` and call `function` with each case's arguments; blocks for at most `timeout_s`."""
    if not function.isidentifier():
        raise ValueError(f"{function!r} is not a valid function name")
    with tempfile.TemporaryDirectory(prefix="openclaw-suite-") as folder:
        program, candidate, output, errors = (
            Path(folder) / name for name in ("program.py", "candidate.py", "output", "errors")
        )
        candidate.write_text(source, encoding="utf-8", errors="replace")
        bounds = {"memory": _MEMORY_BYTES, "file_size": _FILE_BYTES, "folder": folder}
        program.write_text(_PROGRAM.format(function=function, cases=json.dumps(cases), **bounds), encoding="utf-8")
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(program)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={},
                cwd=folder,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return Outcome(None, "timeout")
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status != 0:
            return Outcome(None, "error", _last_line(errors))
        try:
            results = json.loads(_last_line(output))
        except ValueError:
            return Outcome(None, "no result", _last_line(output))
    if not isinstance(results, list) or len(results) != len(cases):
        return Outcome(None, "no result")
    return Outcome(results, "")


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
