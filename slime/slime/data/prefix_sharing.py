"""Prefix sharing: rows that extend each other token by token are forwarded once.

The common prefix of a session's turns is computed once, forwards and backwards, though each turn is a sample, a reward
and a group of its own.

    row 1   fed p1 r1           trains r1 ─┐
    row 2   fed p1 r1 u2 r2     trains r2 ─┼─▶ fed p1 r1 u2 r2 u3 r3     trains r1, r2, r3
    row 3   fed p1 r1 u2 r2 u3 r3   r3    ─┘

A token's output depends on what stands before it and on nothing else, so its loss and its gradient are the same in
either row. Only ids decide; what every token is worth was settled before, sample by sample. It is `stitching`, where
turns have come as samples at different times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slime.data.rows import Row


def share_prefixes(
    rows: Sequence[Row], trajectory_ids: Sequence[str], sizes: Sequence[int]
) -> tuple[list[Row], list[int]]:
    """The rows of a step with each chain of them merged into one, and the sizes of their trajectories.

    Args:
        sizes: trainable tokens of each row's trajectory.
    """
    found = chains(rows, trajectory_ids)
    return [merged([rows[index] for index in chain]) for chain in found], [sizes[chain[0]] for chain in found]


def chains(rows: Sequence[Row], trajectory_ids: Sequence[str]) -> list[list[int]]:
    """Which rows can be fed as one: indices, shortest first, each row in one chain; by the longest row's index.

    Only rows of one trajectory are merged, for they have one size, and only at one temperature.

    >>> chains([row_of((1, 2, 3), trains=[2]), row_of((1, 2, 3, 4, 5), trains=[4])], ["session", "session"])
    [[0, 1]]
    """
    found: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda index: rows[index].length):
        mine = (chain for chain in found if trajectory_ids[chain[-1]] == trajectory_ids[index])
        extended = [chain for chain in mine if _extends(rows[index], rows[chain[-1]])]
        if extended:  # of two chains, it shares most with the longest
            max(extended, key=lambda chain: rows[chain[-1]].length).append(index)
        else:
            found.append([index])
    return sorted(found, key=lambda chain: chain[-1])


def merged(rows: Sequence[Row]) -> Row:
    """One row that is fed the last one's ids and trains what all of them train; their replies are its turns.

    Args:
        rows: a chain, in its order.
    """
    if len(rows) == 1:
        return rows[0]
    streams = {name: torch.cat([row.streams[name] for row in rows]) for name in rows[0].streams}
    turns: list[torch.Tensor] = []
    for row in rows:  # numbered on, so that no two replies look like one
        own = row.streams["turn_index"]
        turns.append(own - own.min() + (turns[-1].max() + 1 if turns else 0))
    return Row(
        token_ids=rows[-1].token_ids,
        predictors=torch.cat([row.predictors for row in rows]),
        targets=torch.cat([row.targets for row in rows]),
        streams={**streams, "turn_index": torch.cat(turns)},
    )


def _extends(row: Row, earlier: Row) -> bool:
    """Whether `row` was fed all that `earlier` was fed and its last token too, and trains only what comes after."""
    if not (earlier.num_trainable and row.num_trainable) or row.length <= earlier.length:
        return False
    return (
        int(row.predictors[0]) >= earlier.length
        and torch.equal(row.token_ids[: earlier.length], earlier.token_ids)
        and int(row.token_ids[earlier.length]) == int(earlier.targets[-1])
        and bool(row.streams["temperature"][0] == earlier.streams["temperature"][0])
    )
