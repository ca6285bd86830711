"""Sequence packing: samples to ranks, and a rank's samples to micro-batches. Pure functions of lengths.

    lengths ─▶ assign_to_ranks ─▶ per rank ─▶ pack (≤ max_tokens each) ─▶ plan[rank][micro-batch] = samples

Sequences are laid end to end, so a micro-batch holds as many tokens as its samples and no padding. Every
rank makes the same plan from the same lengths; none has to be told.
"""

from __future__ import annotations

from collections.abc import Sequence

Plan = tuple[tuple[tuple[int, ...], ...], ...]
"""`plan[rank][micro_batch]`: indices of samples. Ranks may have different numbers of micro-batches, even none."""


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Micro-batches of at most `max_tokens` tokens, few of them and evenly full; a longer sample gets one of its own.

    >>> pack([5, 3, 4, 9], max_tokens=8)
    [[3], [0, 1], [2]]
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for index in _longest_first(lengths):
        fitting = next((i for i, free in enumerate(room) if free >= lengths[index]), None)
        if fitting is None:
            bins.append([index])
            room.append(max_tokens - lengths[index])
        else:
            bins[fitting].append(index)
            room[fitting] -= lengths[index]
    return bins


def assign_to_ranks(lengths: Sequence[int], world_size: int) -> list[list[int]]:
    """Samples of each rank, so that all have about as many tokens: the longest left goes to whoever has least.

    >>> assign_to_ranks([5, 3, 4, 9], world_size=2)
    [[3], [0, 2, 1]]
    """
    ranks: list[list[int]] = [[] for _ in range(world_size)]
    tokens = [0] * world_size
    for index in _longest_first(lengths):
        least = min(range(world_size), key=tokens.__getitem__)
        ranks[least].append(index)
        tokens[least] += lengths[index]
    return ranks


def plan(lengths: Sequence[int], max_tokens: int, world_size: int = 1) -> Plan:
    """The micro-batches of every rank.

    >>> plan([5, 3, 4, 9], max_tokens=8, world_size=2)
    (((3,),), ((0, 1), (2,)))
    """
    return tuple(
        tuple(tuple(mine[i] for i in micro) for micro in pack([lengths[i] for i in mine], max_tokens))
        for mine in assign_to_ranks(lengths, world_size)
    )


def split_evenly(sizes: Sequence[int], num_parts: int) -> list[list[int]]:
    """Consecutive runs of indices with about equal sums, at most `num_parts` and none empty.

    >>> split_evenly([4, 1, 1, 4], num_parts=2)
    [[0, 1], [2, 3]]
    """
    total, parts = sum(sizes), min(num_parts, len(sizes))
    runs: list[list[int]] = [[] for _ in range(parts)]
    before = 0
    for index, size in enumerate(sizes):
        middle = before + size / 2
        earliest = max(0, parts - (len(sizes) - index))  # enough indices must remain for the parts to come
        part = min(int(middle * parts / total) if total else index, parts - 1)
        previous = next((p for p in range(parts - 1, -1, -1) if runs[p]), -1)
        runs[min(max(part, earliest, previous), previous + 1)].append(index)
        before += size
    return runs


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
