"""The scripted engine: replies from a list, for tests, demos and dry runs of everything around an engine."""

from __future__ import annotations

import sys

from slime.engines.backends import Backend, Launch


def command(launch: Launch) -> list[str]:
    return [sys.executable, "-m", "slime.engines.scripted", *launch.shared]


BACKEND = Backend(command)
