"""The dialect, spoken by SGLang 0.5.23 itself: whatever the suite says of it, it says here."""

from __future__ import annotations

import asyncio

import pytest
from conformance import *  # noqa: F403
from conformance import _ongoing, engine  # noqa: F401
from conformance_models import *  # noqa: F403
from rig import Rig
from slime.engines.client import HttpEngine
from slime.engines.dialect.requests import PauseCall, UpdateCall
from slime.errors import EngineRejected

pytestmark = pytest.mark.sglang


async def test_flushing_under_in_place_requests_loses_the_version(rig: Rig, engine: HttpEngine):  # noqa: F811
    """Why the client does not ask for it: the new weights are served under the old version's name."""
    task, _ = await _ongoing(engine, "trap")
    await engine._retried("/pause_generation", PauseCall(mode="in_place").body())
    body = UpdateCall(model_path=str(rig.next_dir), weight_version="5", flush_cache=True).body()
    with pytest.raises(EngineRejected, match="not flushed"):
        await engine._retried("/update_weights_from_disk", body)
    assert await engine.version() == 0
    await engine.resume()
    await asyncio.wait_for(task, 30)
    await engine.update_weights(rig.first_dir, 0)
