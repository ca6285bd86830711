"""In which order, and on which of the workers of `pytest -n`, the files of tests run.

    the file that builds the tiny model ─▶ slow files ─▶ the others that need that model ─▶ quick files

A worker takes a whole file, so that what its tests share is set up once; SGLang's folder shares one server and is taken
whole. The model takes one worker minutes, in which the other needs something else to do; quick files last fill up
what the workers differ by.
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_TINY_MODEL = "tiny_model_dir"


class FilesByWorker(LoadFileScheduling):
    """`--dist loadfile`, but for the folder whose files share a server."""

    def _split_scope(self, nodeid: str) -> str:
        folder = "tests/sglang/"
        return folder if nodeid.startswith(folder) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesByWorker | None:
    return FilesByWorker(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, after what is not asked for has been left out; a file's tests stay as they are written."""
    ranks: dict[str, int] = {}
    for item in items:
        place = _file(item)
        needs_model = _TINY_MODEL in getattr(item, "fixturenames", ())
        rank = 2 if needs_model else 1 if _is_slow(item) else 3
        ranks[place] = 2 if 2 in (rank, ranks.get(place)) else min(rank, ranks.get(place, rank))
    first = next((place for place, rank in ranks.items() if rank == 2), None)
    if first is not None:
        ranks[first] = 0
    items.sort(key=lambda item: ranks[_file(item)])


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("slow", "sglang", "long"))


def _file(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]
