"""A least-recently-used cache, bounded by the size of what it holds, safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """Evicts what was not used for longest once its entries weigh more than `max_size` together.

    >>> cache = SizedCache[str, int](max_size=10)
    >>> cache.put("a", 1, size=6), cache.put("b", 2, size=6), cache.get("a"), cache.get("b")
    (None, None, None, 2)
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._size = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        if (entry := self._entries.get(key)) is None:
            return None
        try:  # without the lock, for speed: each of the two calls is atomic
            self._entries.move_to_end(key)
        except KeyError:  # evicted between them
            return None
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        with self._lock:
            if (replaced := self._entries.pop(key, None)) is not None:
                self._size -= replaced[1]
            self._entries[key] = (value, size)
            self._size += size
            while self._size > self._max_size and len(self._entries) > 1:
                self._size -= self._entries.popitem(last=False)[1][1]
