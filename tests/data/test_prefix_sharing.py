"""Joining: rows that were fed on from one another become one, and nothing that a token is worth changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from slime.data.prefix_sharing import chains, merged, share_prefixes
from slime.data.rows import Row, rows
from slime.types import Sample


def row_of(token_ids: tuple[int, ...], trains: tuple[int, ...], *, temperature: float = 1.0, **streams: tuple) -> Row:
    mask = tuple(int(position in trains) for position in range(len(token_ids)))
    values = {"reward": 1.0, "temperature": temperature}
    [row] = rows([Sample(token_ids, {"loss_mask": mask, **streams}, values, ("turn",))])
    return row


FIRST = row_of((1, 2, 3, 4), trains=(2, 3))


def test_a_row_that_goes_on_from_another_is_fed_for_both() -> None:
    second = row_of((1, 2, 3, 4, 5, 6), trains=(5,), rewards=(0.0,) * 5 + (-1.0,))
    row = merged([FIRST, second])
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert row.predictors.tolist() == [1, 2, 4]
    assert row.targets.tolist() == [3, 4, 6]
    assert row.streams["rewards"].tolist() == [0.0, 0.0, -1.0]
    assert row.streams["turn_index"].tolist() == [0, 0, 1], "two replies"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (row_of((1, 2, 9, 4, 5, 6), trains=(5,)), "it was fed something else"),
        (row_of((1, 2, 3, 9, 5, 6), trains=(5,)), "the last sampled token is another"),
        (row_of((1, 2, 3, 4, 5, 6), trains=(3, 5)), "it trains a token of the first itself"),
        (row_of((1, 2, 3, 4), trains=(2, 3)), "it is the same"),
        (row_of((1, 2, 3, 4, 5, 6), trains=(5,), temperature=0.5), "it has another temperature"),
    ],
)
def test_others_stay_by_themselves(other: Row, why: str) -> None:
    assert chains([FIRST, other], ["s", "s"]) == [[0], [1]], why


def test_rows_of_two_trajectories_stay_apart_and_sizes_go_along() -> None:
    longer = row_of((1, 2, 3, 4, 5, 6), trains=(5,))
    assert chains([FIRST, longer], ["a", "b"]) == [[0], [1]]
    fed, sizes = share_prefixes([longer, FIRST, FIRST], ["a", "a", "b"], [3, 3, 2])
    assert ([row.length for row in fed], sizes) == ([5, 3], [3, 2])


def test_a_branch_goes_on_from_what_it_shares_most_with() -> None:
    left = row_of((1, 2, 3, 4, 5, 6), trains=(5,))
    right = row_of((1, 2, 3, 4, 7, 8, 9), trains=(5, 6))
    after_left = row_of((1, 2, 3, 4, 5, 6, 7, 8), trains=(7,))
    after_right = row_of((1, 2, 3, 4, 7, 8, 9, 1, 2), trains=(8,))
    found = chains([after_right, FIRST, right, left, after_left], ["s"] * 5)
    assert found == [[2, 0], [1, 3, 4]]


@given(st.data())
def test_every_trained_token_stands_once_after_what_it_was_fed(data: st.DataObject) -> None:
    """A random tree of turns: each continues an earlier one, or begins anew."""
    histories: list[tuple[int, ...]] = [()]
    made: list[Row] = []
    for number in range(data.draw(st.integers(1, 7))):
        prompt = (*data.draw(st.sampled_from(histories)), 10 + number)
        reply = tuple(20 + 3 * number + i for i in range(data.draw(st.integers(1, 3))))
        histories.append(prompt + reply)
        made.append(row_of(prompt + reply, tuple(range(len(prompt), len(prompt + reply)))))
    fed, _ = share_prefixes(made, ["s"] * len(made), [1] * len(made))

    def contexts(each: list[Row]) -> list[tuple[tuple[int, ...], int]]:
        return sorted(
            (tuple(row.token_ids[: predictor + 1].tolist()), target)
            for row in each
            for predictor, target in zip(row.predictors.tolist(), row.targets.tolist(), strict=True)
        )

    assert contexts(fed) == contexts(made)
    assert sum(row.length for row in fed) <= sum(row.length for row in made)
    for row in fed:
        assert torch.equal(row.predictors, row.predictors.sort().values)
