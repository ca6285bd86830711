"""Programs that the published pages start stand where they were started, and say what is wrong in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["serve_model.py", "collect_rollouts.py", "train_async.py"])
def test_the_three_programs_can_be_typed_in_the_methods_folder(program: str):
    command = [sys.executable, program, "--rollout-dr", "x"]
    folder = ROOT / "openclaw-combine"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "--rollout-dr" in done.stderr or "--api-endpoint" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "status"), [("0", 2), ("3", 0)])
def test_of_the_processes_that_torchrun_starts_the_first_runs(rank: str, status: int):
    command = ["env", f"RANK={rank}", "WORLD_SIZE=8", sys.executable, "slime/train_grpo.py", "--model-path", "/nowhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status
    assert ("Ray places the ranks" in done.stderr) is (rank == "0")
    assert ("--model-path /nowhere: no such directory" in done.stderr) is (rank == "0")
