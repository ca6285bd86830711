"""The dialect, spoken by the scripted engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance import *  # noqa: F403
from conformance_adapters import *  # noqa: F403
from conformance_adapters import adapted  # noqa: F401
from conformance_ours import *  # noqa: F403
from rig import Rig, run_rig

REPLY = "I have thought about it: three apples and four apples make seven apples, so the answer is 7. " * 10


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    args = ("--reply", REPLY, "--token-delay-s", "0.001")
    yield from run_rig("scripted", tmp_path_factory.mktemp("scripted"), tolerance=1e-9, extra_args=args)
