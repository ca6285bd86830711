"""What we use of Ray that it does not publish: there in the version that is installed, and missed with one line."""

from __future__ import annotations

import inspect
import runpy
import sys

import pytest
from ray._private.parameter import RayParams
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from slime.config.output_paths import JOB_ENV


def test_ray_has_the_names_that_its_public_interface_lacks() -> None:
    assert JOB_ENV == RAY_JOB_CONFIG_JSON_ENV_VAR
    assert "dashboard_agent_listen_port" in inspect.signature(RayParams.__init__).parameters


def test_a_ray_without_them_is_answered_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray._private.parameter", None)
    with pytest.raises(SystemExit, match=r"Ray [\d.]+ cannot be started from here .*: `ray start --head` before"):
        runpy.run_module("slime.cluster.head")
