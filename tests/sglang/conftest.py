"""The real SGLang as one fixture, started once for all tests of the folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engines"))  # the suite that every engine answers to lives there
pytest.register_assert_rewrite("attached", "conformance", "conformance_adapters", "conformance_models", "rig")

from rig import Rig, run_rig  # noqa: E402


def run_sglang(work_dir: Path, extra_args: tuple[str, ...] = ()) -> Iterator[Rig]:
    """Start SGLang over a random model, and stop it when the tests are done with it."""
    python = ROOT / ".venv-sglang" / "bin" / "python"
    assert (ROOT / ".venv-sglang" / ".stamp").exists(), "the SGLang environment is missing: run `make env-sglang`"
    yield from run_rig(
        "sglang",
        work_dir,
        tolerance=1e-4,
        sglang_python=str(python),
        # Byte code is kept in spite of the tests' own habits: it halves the start.
        environment={"PYTHONPATH": str(ROOT / ".venv-sglang" / "cpu-shims"), "PYTHONDONTWRITEBYTECODE": ""},
        extra_args=extra_args,
    )


@pytest.fixture(scope="package")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from run_sglang(tmp_path_factory.mktemp("sglang"))
