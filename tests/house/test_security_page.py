"""Every test that docs/security.md names is there: a promise whose test went away is no promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"tests/[\w/]+(?:\.py)?(?:::\w+)?", PAGE)))


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_the_security_page_names_is_there(named: str) -> None:
    path, _, function = named.partition("::")
    assert (ROOT / path).exists()
    if function:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in functions


def test_every_statement_of_a_table_of_promises_names_its_test() -> None:
    assert len(NAMED) > 15
    tables = re.findall(r"\| statement \| test \|\n\| --- \| --- \|\n((?:\|.*\|\n)+)", PAGE)
    assert len(tables) == 2
    for row in "".join(tables).splitlines():
        assert re.search(r"\| tests/\S+::\w+(?:, tests/\S+::\w+)* \|$", row), row
