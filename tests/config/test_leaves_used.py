"""A setting that nothing reads would be silently ignored."""

from __future__ import annotations

import re
from pathlib import Path

from slime.config.leaves import leaves


def test_every_setting_is_read_somewhere(repository: Path):
    folders = ("slime/slime", "openclaw", "openclaw-rl", "openclaw-opd", "openclaw-combine", "openclaw-test")
    files = [file for folder in folders for file in (repository / folder).rglob("*.py")]
    files = [file for file in files if "config" not in file.relative_to(repository).parts]
    code = "\n".join(file.read_text(encoding="utf-8") for file in [*files, repository / "slime" / "train.py"])
    unread = [leaf.name for leaf in leaves().values() if not re.search(rf"\b{leaf.name}\b", code)]
    assert not unread
