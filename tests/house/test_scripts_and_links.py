"""Shell scripts parse and pass shellcheck; links in the documentation lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT, tracked

SHELL = [path for path in tracked() if path.endswith(".sh") or path == ".ci/run"]
PAGES = [path for path in tracked() if path.endswith(".md")]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("path", SHELL)
def test_shell_scripts_are_sound(path: str):
    parsed = subprocess.run(["bash", "-n", path], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert parsed.returncode == 0, parsed.stderr
    shellcheck = Path(sys.executable).parent / "shellcheck"
    checked = subprocess.run(
        [shellcheck, "--severity=warning", path], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("path", SHELL)
def test_shell_scripts_stop_at_the_first_error(path: str):
    assert re.search(r"^set -euo pipefail$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), path


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_that_exist(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in _LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / file if file else ROOT / page
        assert linked.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_name_exist(page: str):
    text = (ROOT / page).read_text(encoding="utf-8").partition("<!-- tree")[0]
    text = re.sub(r"\]\([^)]*\)", "]", text)  # links are relative to their page, and checked above
    for named in re.findall(
        r"(?<![\w/.-])((?:tests|slime|openclaw-rl|openclaw-opd|openclaw-combine|openclaw-test|benchmarks|docs)/[\w/.-]*\w)",
        text,
    ):
        assert (ROOT / named).exists(), f"{page}: {named}"


def anchors(page: Path) -> set[str]:
    """The anchors that a Markdown page offers, as forges make them from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
