"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of recorded data that lies next to the repository (or where `OPENCLAW_SHARED_DIR` says).

    Tests that need it are skipped where somebody has only the code, never in CI.
    """
    folder = Path(os.environ.get("OPENCLAW_SHARED_DIR", ROOT.parent / "shared"))
    if not folder.is_dir():
        absent = f"recorded data is not at {folder}; set OPENCLAW_SHARED_DIR"
        if os.environ.get("CI"):
            pytest.fail(absent)
        pytest.skip(absent)
    return folder
