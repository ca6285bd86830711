"""Packing, sharing and checksums, against the plainest way to say the same."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.errors import IllegalTransition, StoreError
from slime.store import records
from slime.store.states import BIRTH_STATES, TRANSITIONS, check_move
from slime.types import TurnState

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40)
FEW = st.lists(st.integers(0, 4), max_size=30)
"""Few different numbers, so that runs repeat and overlap."""


@given(IDS)
def test_ids_read_back(ids: list[int]) -> None:
    assert records.unpack_ids(records.pack_ids(ids)) == tuple(ids)


@given(st.lists(st.floats(allow_nan=False), max_size=40))
def test_logprobs_read_back_to_the_bit(values: list[float]) -> None:
    found = records.unpack_floats(records.pack_floats(values))
    assert [math.copysign(1, value) for value in found] == [math.copysign(1, value) for value in values]
    assert list(found) == values


@given(FEW, FEW)
def test_shared_ids_is_the_common_prefix(first: list[int], second: list[int]) -> None:
    expected = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))
    assert records.shared_ids(records.pack_ids(first), records.pack_ids(second)) == expected


@given(FEW, FEW)
def test_splice_reads_back_whatever_the_base(numbers: list[int], base: list[int]) -> None:
    assert records.unsplice(records.splice(numbers, base), base) == tuple(numbers)


def test_splice_of_a_rewritten_history_stays_small() -> None:
    base = list(range(1000))
    rewritten = [5000, *base[1:400], *base[402:], 5001]
    assert len(records.unpack_ids(records.splice(rewritten, base))) == 2 * 4


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON | st.text(alphabet=st.characters(categories=("Cs", "Lu"))))
def test_json_reads_back_exactly(value: object) -> None:
    came = json.loads(json.dumps(value))  # as a client's body would bring it: surrogate pairs are joined
    assert records.decode_json(records.encode_json(came)) == came


def test_what_is_not_json_is_a_store_error() -> None:
    with pytest.raises(StoreError, match="cannot be stored as JSON"):
        records.encode_json({"x": {1, 2}})


@given(st.lists(st.binary(max_size=6), max_size=5), st.lists(st.binary(max_size=6), max_size=5))
def test_checksum_tells_parts_apart(first: list[bytes], second: list[bytes]) -> None:
    assert (records.checksum(first) == records.checksum(second)) == (first == second)


def test_every_state_has_its_moves_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(TurnState)
    reachable = set(BIRTH_STATES).union(*TRANSITIONS.values())
    assert reachable == set(TurnState)
    with pytest.raises(IllegalTransition, match="t1 is trained and cannot become ready, only judged"):
        check_move("t1", TurnState.TRAINED, TurnState.READY)
    with pytest.raises(IllegalTransition, match="only nothing"):
        check_move("t1", TurnState.ABORTED, TurnState.READY)
