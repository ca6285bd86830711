"""One random policy for all trainer tests; none of them writes into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from learners import write_policy


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy") / "model")
