"""What every test may use."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from order import pytest_collection_modifyitems, pytest_xdist_make_scheduler
from slime.compat.install import install
from slime.monitor import OURS

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# An example's time says how busy the machine is, and nothing about what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

install()  # as every program does that loads plug-ins

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def log_lines_go_where_they_went() -> Iterator[None]:
    """What an entry point that a test calls does to our loggers ends with that test."""
    loggers = [logging.getLogger(name) for name in OURS]
    before = [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate, logger.handlers = propagate, handlers


@pytest.fixture(autouse=True)
def no_test_changes_how_this_process_is_scheduled() -> Iterator[None]:
    """What a test does to this thread, all later tests and the processes that they start inherit."""
    yield
    if sys.platform == "linux":
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


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


@pytest.fixture(scope="session")
def tiny_model_dir() -> Path:
    """The whole tiny model, for tests that need one which can do something. Building it takes minutes, so that it is
    kept for the next run of tests, `make test-long` after `make test`; one of other sources is built anew. Of workers
    that need it at once one builds it, and the others wait; the time limit of a test begins after that."""
    directory = ROOT / "build" / "tiny-model"
    directory.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "openclaw.cli", "tiny-model", str(directory)]
    with (directory.parent / "tiny-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(command, check=True, timeout=3000, capture_output=True)
    return directory
