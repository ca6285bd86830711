"""What people type from the root of the repository works, and folders with dashes can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["slime/train.py", "--help"], "--custom-loss-function-path"),
        (["-m", "openclaw.server", "--help"], "--enable-rl-intercept"),
        (["-m", "openclaw.cli", "--help"], "replay-traffic"),
    ],
)
def test_help_of_every_program(command: list[str], words: str):
    done = run(sys.executable, *command)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", [["slime/train.py"], ["-m", "openclaw.server"]])
def test_a_mistake_is_one_line_and_exit_code_2(command: list[str]):
    done = run(sys.executable, *command, "--model-pth", "x")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith("error: unknown flag --model-pth; did you mean --model-path?\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["openclaw_rl", "openclaw_opd", "openclaw_combine", "openclaw_test"])
def test_folders_with_dashes_are_importable_under_their_names(package: str):
    done = run(sys.executable, "-c", f"import {package}; print({package}.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent.resolve() == ROOT / package.replace("_", "-")


def test_the_outer_slime_folder_does_not_shadow_the_package():
    done = run(sys.executable, "-c", "import slime.types; print(slime.types.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == ROOT / "slime/slime/types/__init__.py"
