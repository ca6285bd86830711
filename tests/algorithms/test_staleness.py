"""Samples four updates old cost next to nothing with the default correction, and measurably more without one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learning" / "staleness.py"


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("staleness_benchmark", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_what_the_correction_is_worth(benchmark: ModuleType) -> None:
    found = benchmark.compare(benchmark.parse([]))
    share = {name: float((worth / found["fresh"]).mean()) for name, worth in found.items()}
    assert share["tis"] >= 0.98
    assert share["decoupled"] >= 0.98
    assert share["none"] <= 0.97
    assert int((found["tis"] > found["none"]).sum()) >= 7, "of eight seeds, each with the same task on both sides"
