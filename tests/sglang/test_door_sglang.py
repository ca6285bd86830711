"""The real SGLang behind a token that it reads from a file, which is gone once it is up."""

from __future__ import annotations

from pathlib import Path

import pytest
from slime.config.sections import EngineConfig
from slime.engines.launch import with_token
from test_engine_door import check_door

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]


async def test_sglang_does_nothing_for_those_without_its_token(tmp_path: Path) -> None:
    python = ROOT / ".venv-sglang/bin/python"
    shims = {"PYTHONPATH": str(ROOT / ".venv-sglang/cpu-shims"), "PYTHONDONTWRITEBYTECODE": ""}
    await check_door("sglang", tmp_path, with_token(EngineConfig(sglang_python=str(python))), shims)
