"""Adapters in SGLang 0.5.23 itself, started for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance_adapters import *  # noqa: F403
from conformance_adapters import adapted  # noqa: F401
from conftest import run_sglang
from rig import Rig

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    flags = ("--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "4", "--lora-target-modules")
    yield from run_sglang(tmp_path_factory.mktemp("sglang-adapters"), (*flags, *targets))
