"""Two indexes over the cached turns: postings (turn ids by key) and shares (turn counts per credential).

Every operation takes constant time however many turns share a key: load tests and health checks repeat one request.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bytes, str)

MAX_LOOKED_AT = 64
"""The most turns returned for one key, newest first."""


class Postings(Generic[K]):
    """Turn ids by key, in insertion order.

    >>> postings = Postings[str]()
    >>> postings.add("a", "t1"), postings.add("a", "t2"), list(postings.newest("a"))
    (None, None, ['t2', 't1'])
    """

    def __init__(self) -> None:
        # Most keys have one turn; only keys with several need a dict.
        self._entries: dict[K, str | dict[str, None]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        """The number of entries under all keys."""
        return sum(1 if isinstance(entry, str) else len(entry) for entry in self._entries.values())

    def add(self, key: K, turn_id: str) -> None:
        entry = self._entries.get(key)
        if entry is None or entry == turn_id:
            self._entries[key] = turn_id
        elif isinstance(entry, str):
            self._entries[key] = {entry: None, turn_id: None}
        else:
            entry[turn_id] = None

    def discard(self, key: K, turn_id: str) -> None:
        entry = self._entries.get(key)
        if isinstance(entry, dict):
            entry.pop(turn_id, None)
            if len(entry) > 1:
                return
            if entry:
                self._entries[key] = next(iter(entry))
                return
        elif entry != turn_id:
            return
        del self._entries[key]

    def newest(self, key: K) -> Iterator[str]:
        """The newest turns under a key, newest first."""
        entry = self._entries.get(key)
        if entry is None:
            return iter(())
        return iter((entry,)) if isinstance(entry, str) else islice(reversed(entry), MAX_LOOKED_AT)


class Shares:
    """Counts turns per holder; finds the largest in constant time.

    >>> shares = Shares()
    >>> shares.add("a"), shares.add("a"), shares.add("b"), shares.largest(), shares.total
    (None, None, None, 'a', 3)
    """

    def __init__(self) -> None:
        self.total = 0
        self._count: dict[str, int] = {}
        self._holders: dict[int, dict[str, None]] = {}
        self._most = 0

    def add(self, holder: str) -> None:
        self._move(holder, 1)
        self._most = max(self._most, self._count[holder])

    def remove(self, holder: str) -> None:
        self._move(holder, -1)
        if self._most not in self._holders:
            self._most -= 1

    def largest(self) -> str:
        """A holder with the highest count."""
        return next(reversed(self._holders[self._most]))

    def _move(self, holder: str, step: int) -> None:
        count = self._count.pop(holder, 0)
        if count:
            peers = self._holders[count]
            del peers[holder]
            if not peers:
                del self._holders[count]
        count += step
        self.total += step
        if count:
            self._count[holder] = count
            self._holders.setdefault(count, {})[holder] = None
