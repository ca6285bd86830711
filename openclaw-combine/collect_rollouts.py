"""Runs ../collect_rollouts.py, for commands typed in this folder."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "collect_rollouts.py"), run_name="__main__")
