"""`make demo` from the first command to the last line, interrupted once on the way; and what it must have taught."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slime.monitor import read_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800, func_only=True)]

UPDATES = 24


def start(folder: Path, log: Path, model_dir: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "openclaw.cli", "demo", "--run-dir", "run", "--questions", "400"]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, "--model-dir", str(model_dir), "--updates", str(UPDATES)],
            cwd=folder,
            stdout=output,
            stderr=output,
            # Whoever runs the tests in the background has SIGINT ignored, and would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


def test_the_demo_teaches_what_people_want_and_goes_on_after_an_interruption(tmp_path: Path, tiny_model_dir: Path):
    log = tmp_path / "demo.log"
    began = time.monotonic()
    demo = start(tmp_path, log, tiny_model_dir)
    try:
        deadline = time.monotonic() + 900
        while not (steps := [entry["step"] for entry in read_metrics(tmp_path / "run")]) or steps[-1] < 4:
            assert demo.poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.5)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=120) == 130
        interrupted_at = read_metrics(tmp_path / "run")[-1]["step"]
        demo = start(tmp_path, log, tiny_model_dir)
        assert demo.wait(timeout=600) == 0, log.read_text(encoding="utf-8")
    finally:
        demo.kill()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert interrupted_at < UPDATES
    assert summary["steps"] == UPDATES
    assert summary["samples"] == 16 * UPDATES
    assert summary["requests_failed"] == 0
    assert 60 < summary["seconds"] <= time.monotonic() - began
    assert summary["satisfaction_before"] <= 0.1
    assert summary["satisfaction_after"] >= 0.8
    assert summary["accuracy_before"] >= 0.9
    assert summary["accuracy_after"] >= summary["accuracy_before"] - 0.05
    assert (tmp_path / "run" / "curves.png").stat().st_size > 10_000
