"""Runs ../serve_model.py, for commands typed in this folder."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "serve_model.py"), run_name="__main__")
