"""The KV cache: one slot a sequence; prefix caching reuses what a finished sequence leaves in its slot.

A slot holds the keys and values of `length` tokens `ids[:length]` at positions 0..length-1. A new sequence takes over
the idle slot that it continues (the next turn of a session), or copies the prefix that it shares with any other (a
common system prompt) into one that was not needed for long. Busy slots are kept near each other, so that all decoding
rows of a step are one view of the cache with few gaps; where they got scattered, they change places one at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

MIN_SHARED_PREFIX = 16
"""Shorter common prefixes than this are not worth the copy."""

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What keys and values of a model look like."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache.

    Attributes:
        index: where it lies now; slots change places when others are released.
        ids: tokens whose keys and values it holds, of which the first `length` count.
        owner: the sequence that decodes in it; None while it is only cache.
        last_used: logical time of the last release, for least-recently-used replacement.
        adapter: key of the adapter that made what it holds; 0 = the base.
    """

    index: int
    ids: list[int] = field(default_factory=list)
    length: int = 0
    owner: object | None = None
    last_used: int = 0
    adapter: int = 0


class KVSlots:
    """Preallocated `keys` and `values`, `[layers, slots + 1, kv_heads, capacity, head_dim]` each.

    The extra last row is scratch, for probes. Memory is bounded by `budget_bytes`; capacity (tokens a slot) grows by
    doubling, and as it grows, fewer slots fit.
    """

    def __init__(self, shape: CacheShape, *, max_busy: int, num_slots: int, max_length: int, budget_bytes: int) -> None:
        self._shape = shape
        token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
        self._budget_tokens = budget_bytes // token_bytes
        self.max_length = min(max_length, self._budget_tokens // 2)
        if self.max_length < 2:
            raise ValueError(f"a KV budget of {budget_bytes} bytes holds no sequence of this model")
        self._max_busy, self._max_slots = max_busy, max(num_slots, max_busy)
        self._clock = 0
        self.slots: list[Slot] = []
        self._cache = torch.empty(0)
        self.capacity = 0
        self._resize(min(_FIRST_CAPACITY, self.max_length))

    @property
    def num_busy(self) -> int:
        return sum(slot.owner is not None for slot in self.slots)

    @property
    def scratch(self) -> int:
        """Index of the row that belongs to no sequence."""
        return len(self.slots)

    def fits(self, capacity: int) -> int:
        """How many slots (at least one) the budget holds at this many tokens each, beside the scratch row."""
        return max(1, min(self._max_slots, self._budget_tokens // capacity - 1))

    def ensure(self, length: int, *, num_busy: int | None = None) -> bool:
        """Make every slot long enough for `length` tokens; False if that leaves no room for `num_busy` of them."""
        capacity = self.capacity
        while capacity < min(length, self.max_length):
            capacity = min(capacity * 2, self.max_length)
        if capacity > self.capacity:
            if self.fits(capacity) < (self.num_busy if num_busy is None else num_busy):
                return False
            self._resize(capacity)
        return True

    def acquire(self, ids: list[int], owner: object, *, reuse_limit: int, adapter: int = 0) -> Slot | None:
        """A slot for a sequence that starts with `ids` and that an adapter makes; None while there is no room.

        What other adapters, or the base, have computed is never reused.
        `slot.length` says how many leading tokens are already there; never more than `reuse_limit`.
        """
        wanted = self.num_busy + 1
        if wanted > min(self._max_busy, len(self.slots)) or not self.ensure(len(ids) + 1, num_busy=wanted):
            return None
        donor, shared = self._longest_prefix(ids, reuse_limit, adapter)
        slot = donor
        if slot is None or slot.owner is not None or (slot.length > 2 * shared and len(self.slots) > wanted):
            # Nothing to continue, or the donor is worth keeping as it is.
            slot = self._least_needed(donor)
            if donor is not None:
                self._copy(donor.index, slot.index, shared)
        slot.length, slot.ids, slot.owner, slot.adapter = shared, ids, owner, adapter
        return slot

    def release(self, slot: Slot) -> None:
        """The sequence is over; what it computed stays as cache."""
        slot.owner = None
        self._clock += 1
        slot.last_used = self._clock
        slot.ids = slot.ids[: slot.length]

    def gather(self) -> None:
        """Where busy slots span more than twice their number, bring one of them nearer to the others."""
        busy = [slot.index for slot in self.slots if slot.owner is not None]
        if len(busy) < 2 or busy[-1] + 1 - busy[0] <= 2 * len(busy):
            return
        middle = busy[len(busy) // 2]
        far = busy[0] if middle - busy[0] > busy[-1] - middle else busy[-1]
        idle = (slot.index for slot in self.slots if slot.owner is None)
        self._swap(far, min(idle, key=lambda index: abs(index - middle)))

    def forget(self, *, idle: bool = True, busy: bool = False, adapter: int | None = None) -> None:
        """Drop what idle slots hold; of busy ones too, if asked: they will be computed anew.

        Args:
            adapter: drop only what this one made.
        """
        for slot in self.slots:
            is_meant = busy if slot.owner is not None else idle
            if is_meant and adapter in (None, slot.adapter):
                slot.length = 0
                slot.ids = slot.ids if slot.owner is not None else []

    def cached_tokens(self) -> int:
        """Tokens that idle slots hold."""
        return sum(slot.length for slot in self.slots if slot.owner is None)

    def _least_needed(self, donor: Slot | None) -> Slot:
        """An idle slot: of the half that was not needed for longest, the one nearest to the busy ones."""
        idle = [slot for slot in self.slots if slot.owner is None and slot is not donor]
        idle.sort(key=lambda slot: (slot.length > 0, slot.last_used, slot.index))
        busy = [slot.index for slot in self.slots if slot.owner is not None]
        if not busy:
            return idle[0]
        return min(idle[: (len(idle) + 1) // 2], key=lambda slot: max(busy[0] - slot.index, slot.index - busy[-1], 0))

    def _longest_prefix(self, ids: list[int], limit: int, adapter: int) -> tuple[Slot | None, int]:
        best: Slot | None = None
        shared = MIN_SHARED_PREFIX - 1
        wanted = np.asarray(ids[:limit], dtype=np.int64)
        for slot in self.slots:
            length = min(slot.length, len(wanted))
            if slot.adapter != adapter or length <= shared or slot.ids[shared] != ids[shared] or slot.ids[0] != ids[0]:
                continue
            differs = np.asarray(slot.ids[:length], dtype=np.int64) != wanted[:length]
            common = int(differs.argmax()) if differs.any() else length
            if common > shared:
                best, shared = slot, common
        return (best, shared) if best is not None else (None, 0)

    def _copy(self, source: int, target: int, length: int) -> None:
        self._cache[:, :, target, :, :length] = self._cache[:, :, source, :, :length]

    def _swap(self, first: int, second: int) -> None:
        a, b = self.slots[first], self.slots[second]
        length = max(a.length, b.length)
        kept = self._cache[:, :, first, :, :length].clone()
        self._copy(second, first, length)
        self._cache[:, :, second, :, :length] = kept
        self.slots[first], self.slots[second] = b, a
        a.index, b.index = second, first

    def _resize(self, capacity: int) -> None:
        num_slots = max(self.num_busy, self.fits(capacity))
        keep_first = sorted(self.slots, key=lambda slot: (slot.owner is None, -slot.last_used))[:num_slots]
        kept = sorted(keep_first, key=lambda slot: slot.index)
        cache = _zeros(self._shape, num_slots + 1, capacity)
        for index, slot in enumerate(kept):
            cache[:, :, index, :, : slot.length] = self._cache[:, :, slot.index, :, : slot.length]
            slot.index = index
        self._cache, self.capacity = cache, capacity
        self.keys, self.values = cache
        self.slots = kept + [Slot(index) for index in range(len(kept), num_slots)]


def _zeros(cache: CacheShape, num_slots: int, capacity: int) -> torch.Tensor:
    """A zeroed tensor that takes no memory on a CPU before it is written to: pages of zeros come from the kernel.

    Zeroed, because masked attention multiplies what has not been written by 0, and a NaN would survive that.
    """
    shape = (2, cache.num_layers, num_slots, cache.num_kv_heads, capacity, cache.head_dim)
    if cache.device.type != "cpu":
        return torch.zeros(shape, dtype=cache.dtype, device=cache.device)
    raw = np.zeros(math.prod(shape) * cache.dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(cache.dtype).view(shape)
