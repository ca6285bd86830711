"""The tree in README.md names every tracked file and says what it is."""

from __future__ import annotations

from sources import ROOT, tracked
from tree import BEGIN, END, description, with_tree


def test_the_tree_in_the_readme_is_current():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN in readme
    assert END in readme
    assert readme == with_tree(readme), "run: make write"


def test_every_file_says_what_it_is():
    silent = [path for path in tracked() if not description(path) and not path.endswith("__init__.py")]
    assert not silent
