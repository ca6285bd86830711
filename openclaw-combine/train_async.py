"""Runs ../train_async.py, for commands typed in this folder."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "train_async.py"), run_name="__main__")
