"""The dialect, spoken by the embedded engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance import *  # noqa: F403
from conformance_adapters import *  # noqa: F403
from conformance_adapters import adapted  # noqa: F401
from conformance_models import *  # noqa: F403
from conformance_ours import *  # noqa: F403
from rig import Rig, run_rig


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from run_rig("embedded", tmp_path_factory.mktemp("embedded"), tolerance=1e-5)
