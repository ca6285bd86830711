"""The parts of `benchmarks/on_gpu.sh` in their smallest form, on a CPU: each runs to its end and writes its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PARTS = (
    pytest.param("engine-0.6b", marks=pytest.mark.slow),
    pytest.param("trainer-0.6b", marks=pytest.mark.slow),
    pytest.param("losses", marks=pytest.mark.long),
    pytest.param("serving-0.6b", marks=pytest.mark.long),
)
"""One part of each program."""


def on_gpu(repository: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["bash", str(repository / "benchmarks" / "on_gpu.sh"), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("part", PARTS)
def test_a_part_runs_without_a_gpu_and_writes_figures_and_baseline(part: str, repository: Path, tmp_path: Path) -> None:
    done = on_gpu(repository, "--tiny", "--device", "cpu", "--out", str(tmp_path), part)
    assert done.returncode == 0, done.stdout + done.stderr
    written: dict[str, Any] = json.loads((tmp_path / f"{part}.json").read_text("utf-8"))
    assert written["is_complete"] is True
    cases = written["cases"]
    if part == "losses":
        assert len(cases) >= 2 * 19 + 1
        assert all(found["loss"] == found["grad_norm"] == 0 for found in cases.values()), "a CPU against itself"
    elif part.startswith("engine"):
        assert cases["log-probs"]["mean_abs_engine"] < 1e-5
        assert cases["2 × 16"]["engine"] > 0 < cases["2 × 16"]["generate"]
    elif part.startswith("trainer"):
        assert {"adapter", "all weights", "baseline: plain loop"} <= cases.keys()
        assert all(0 < found["mfu"] < 1 for found in cases.values())
    else:
        for found in cases.values():
            assert found["updates"] == 2
            assert found["quiet_requests"] >= 8
            assert found["step_to_served_ms"] >= found["save_ms"]


def test_an_unknown_part_is_one_line_and_exit_code_2(repository: Path, tmp_path: Path) -> None:
    done = on_gpu(repository, "--out", str(tmp_path), "engine-9t")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no part engine-9t" in done.stderr
