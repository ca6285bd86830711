"""What is generated is current: the tree in README.md, the table of variables in docs/security.md."""

from __future__ import annotations

from sources import ROOT, tracked
from tree import BEGIN, END, FOLDERS, description, folders, with_tree
from variables import with_variables


def test_the_tree_in_the_readme_is_current():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert BEGIN in readme
    assert END in readme
    assert readme == with_tree(readme), "run: make write"


def test_the_readme_stays_a_page_and_describes_no_folder_that_is_gone():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert set(FOLDERS) <= set(folders())


def test_every_file_says_what_it_is():
    silent = [path for path in tracked() if not description(path) and not path.endswith("__init__.py")]
    assert not silent


def test_the_variables_on_the_security_page_are_current():
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    assert "| `MODEL_PATH` |" in page
    assert page == with_variables(page), "run: make write"
