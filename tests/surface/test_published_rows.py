"""Every row of the two published pages, 136 and 90, does today what its line of rows.tsv says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from row_checks import Place, Row, assert_row, rows

FINE = ("works", "translated", "answered", "later", "theirs")
"""As printed; as something of ours, and it is said; a line says what to do; a line says not yet; somebody else's."""
BAD = ("silently wrong", "refused badly", "missing")
"""What a row is called whose promise does not hold: `says` is then the reason. There is none."""

ROWS = rows()
COUNTS = Counter(row.state for row in ROWS)
SUMMARY = ", ".join(f"{COUNTS[state]} {state}" for state in FINE + BAD)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.page}:{row.line} {row.literal[:40]}" for row in ROWS])
def test_a_row_does_what_the_table_says(row: Row, shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert_row(row, Place(shared_dir, tmp_path, monkeypatch))


@pytest.mark.parametrize("counts", [COUNTS], ids=[SUMMARY])
def test_the_table_is_whole_and_no_row_is_wrong_refused_badly_or_missing(counts: Counter[str]):
    assert Counter(row.page for row in ROWS) == {"A": 136, "B": 90}
    assert len({(row.page, row.line, row.literal) for row in ROWS}) == 226
    assert set(counts) <= {*FINE, *BAD}
    assert [row for row in ROWS if row.state in BAD] == []
