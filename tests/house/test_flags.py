"""Every flag is for ever: the list is frozen, and adding one means writing it down here."""

from __future__ import annotations

from pathlib import Path

from slime.config.document import document
from slime.config.leaves import leaves

ROOT = Path(__file__).parents[2]


def test_the_list_of_flags_is_the_one_written_down():
    written = (ROOT / "tests/house/flags.txt").read_text().split()
    actual = [leaf.flag for leaf in leaves().values()]
    assert actual == written, "a flag came or went: if that is meant, change tests/house/flags.txt in the same commit"


def test_the_configuration_page_is_current():
    written = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert written == document(), "run: python -m slime.config.document > docs/configuration.md"
