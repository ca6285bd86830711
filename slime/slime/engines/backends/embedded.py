"""The embedded engine: transformers in a process of ours, on the CPU or one GPU."""

from __future__ import annotations

import os
import sys

from slime.engines.backends import Backend, Launch


def command(launch: Launch) -> list[str]:
    own = ["--device", launch.model.device, "--dtype", launch.model.dtype]
    if launch.engine.max_context_len:
        own += ["--context-length", str(launch.engine.max_context_len)]
    return [sys.executable, "-m", "slime.engines.embedded", *launch.shared, *own]


def environment(launch: Launch) -> dict[str, str]:
    """On a CPU a thread: several processes share the cores; with a thread a core in each they wait for each other."""
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if launch.is_cpu else {}


BACKEND = Backend(command, environment)
