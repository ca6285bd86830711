"""Connections to the database file: the writer's, which remembers what it wrote, and the reader's.

writer ─ Connection(writes=True), trunks and contents at hand ─▶ turns.sqlite3 ◀─ Connection(writes=False) ─ reader
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slime.errors import StoreError
from slime.sized_cache import SizedCache
from slime.store.trunks import Trunk
from slime.types import TurnKind

Clock = Callable[[], float]

WAL_PAGES = 4000
"""Pages of write-ahead log (16 MiB) after which a commit also moves them into the database file."""


MAX_TRUNK_BYTES = 64 << 20
"""Of the trunks that a writer remembers."""


class Standing(NamedTuple):
    """The small row of a turn, which its moves change. Names of kind and state are as the file has them."""

    seq: int
    turn_id: str
    session_id: str
    parent_id: str | None
    kind: str
    state: str
    reason: str
    step: int | None
    lease_owner: str | None

    @property
    def is_trainable(self) -> bool:
        return TurnKind(self.kind).is_trainable


_STANDINGS = f"SELECT {', '.join(Standing._fields)} FROM turns WHERE "


class Connection(sqlite3.Connection):
    """One thread's connection; transactions are begun by hand, and no call waits inside SQLite (see `writer`).

    `synchronous = FULL` makes COMMIT return after the write-ahead log is on the disk: acknowledged means stored.

    Args:
        clock: seconds that leases are counted on, shared by all processes of the machine.

    Attributes:
        trunks, contents: what a writer knows without reading: turns to build on, and numbers of contents by hash.
    """

    def __init__(self, path: Path, *, writes: bool, clock: Clock = time.monotonic) -> None:
        super().__init__(
            f"{path.absolute().as_uri()}?mode=rw",  # a file that vanished is an error, not a new empty store
            uri=True,
            timeout=0.0 if writes else 5.0,
            isolation_level=None,
            check_same_thread=False,  # one thread uses it, and another may close it
            cached_statements=64,
        )
        self.clock = clock
        self.forget()
        # Damaged text must reach the checksum, which knows whose it is, instead of failing in the driver.
        self.text_factory = lambda text: text.decode("utf-8", "replace")
        try:
            self.execute("PRAGMA synchronous = FULL")
            self.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            self.execute(f"PRAGMA journal_size_limit = {2 * WAL_PAGES * 4096}")
            if not writes:
                self.execute("PRAGMA query_only = ON")
        except sqlite3.Error:
            self.close()  # here and now: left to the error's last holder, the file would be closed in its thread
            raise

    def forget(self) -> None:
        """Start to remember anew: where something was rolled back, it may be of rows that do not exist."""
        self.trunks: SizedCache[str, Trunk] = SizedCache(MAX_TRUNK_BYTES)
        self.contents: dict[bytes, int] = {}

    def one(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The first row; None if there is none."""
        return self.execute(query, values).fetchone()

    def column(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The first value of every row."""
        return [row[0] for row in self.execute(query, values)]

    def standings(self, where: str, values: Sequence[Any] | Mapping[str, Any]) -> list[Standing]:
        """How the turns stand that a condition selects: `standings("step > ? ORDER BY seq", (3,))`."""
        return list(map(Standing._make, self.execute(_STANDINGS + where, values)))

    def find(self, turn_id: str) -> Standing | None:
        """How a turn stands; None if it is not stored."""
        return next(iter(self.standings("turn_id = ?", (turn_id,))), None)

    def need(self, turn_id: str) -> Standing:
        """How a turn stands; `StoreError` if it is not stored."""
        found = self.find(turn_id)
        if found is None:
            raise StoreError(f"no turn {turn_id} is stored")
        return found
