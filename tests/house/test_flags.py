"""Every flag is for ever: the list is frozen, and adding one means writing it down here."""

from __future__ import annotations

import re
from pathlib import Path

from slime.config.document import document
from slime.config.leaves import leaves
from slime.config.loader import resolve

ROOT = Path(__file__).parents[2]


def test_the_list_of_flags_is_the_one_written_down():
    written = (ROOT / "tests/house/flags.txt").read_text().split()
    actual = [leaf.flag for leaf in leaves().values()]
    assert actual == written, "a flag came or went: if that is meant, change tests/house/flags.txt in the same commit"


def test_the_configuration_page_is_current():
    written = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert written == document(), "run: python -m slime.config.document > docs/configuration.md"


def test_the_ten_settings_to_begin_with_resolve_as_the_file_that_is_printed(tmp_path):
    """And they are the ten of the table, so that none of them is left out of the file."""
    page = document()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    table = page.partition("## Ten settings")[2].partition("The same as a file")[0]
    file = tmp_path / "my-run.yaml"
    file.write_text(block)
    resolution = resolve(["--config", str(file)], {})
    given = [leaves()[path].flag for path, origin in resolution.origins.items() if origin.startswith(f"{file}:")]
    assert sorted(given) == sorted(re.findall(r"`(--[a-z-]+)`", table))
    assert len(given) == 10
    assert resolution.refusals == ()
    assert (resolution.config.trainer.lr, resolution.config.lora.use_lora) == (1e-5, True)
