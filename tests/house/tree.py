"""The tree in README.md: one line per tracked file, made from what each file says about itself.

    python tests/house/tree.py        writes it between the markers

A Python file's line is the first sentence of its docstring, a script's its first comment, a page's its title; only
files that cannot speak for themselves are described here.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from sources import ROOT, tracked

BEGIN, END = "<!-- tree: written by tests/house/tree.py -->", "<!-- /tree -->"

SPEECHLESS = {
    ".gitignore": "what git leaves alone",
    "LICENSE": "Apache-2.0",
    "benchmarks/results/methods.png": "how many sessions each method needs, beside a memory and best-of-n",
    "pyproject.toml": "the packages outside slime/, and the settings of ruff, mypy and pytest",
    "requirements.txt": "what `pip install -r` needs: both packages, editable, on a CPU build of torch",
    "slime/pyproject.toml": "the training core as a pip project",
    "slime/slime/judging/next_states.jsonl": "what people and tools said next, with the score it means",
    "tests/house/flags.txt": "every flag there is, frozen",
    "tests/sglang/requirements.txt": "what the real SGLang needs on a CPU",
}
_WIDTH = 44


def tree() -> str:
    """The block, as Markdown."""
    lines: list[str] = []
    shown: tuple[str, ...] = ()
    for path in sorted(tracked(), key=_folders_last):
        *folders, name = PurePath(path).parts
        for depth, folder in enumerate(folders):
            if shown[: depth + 1] != tuple(folders[: depth + 1]):
                lines.append(f"{'  ' * depth}{folder}/")
        shown = tuple(folders)
        entry = f"{'  ' * len(folders)}{name}"
        about = description(path)
        lines.append(f"{entry:<{_WIDTH}} {about}" if about else entry)
    return "```text\n" + "\n".join(lines) + "\n```"


def _folders_last(path: str) -> list[tuple[bool, str]]:
    parts = PurePath(path).parts
    return [(i < len(parts) - 1, part) for i, part in enumerate(parts)]


def description(path: str) -> str:
    """What a file says about itself, in one line."""
    if path in SPEECHLESS:
        return SPEECHLESS[path]
    text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    if path.endswith(".py"):
        docstring = ast.get_docstring(ast.parse(text)) or ""
        return _sentence(docstring.split("\n\n")[0])
    if path.endswith(".md"):
        return next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")), "")
    comment = re.search(r"^# (?!!)(.+(?:\n# .+)*)", text, flags=re.MULTILINE)
    if comment:
        return _sentence(comment[1].replace("\n# ", " "))
    raise ValueError(f"{path} cannot say what it is; describe it in SPEECHLESS")


def _sentence(paragraph: str) -> str:
    """The first sentence of a paragraph, without its full stop."""
    flat = " ".join(paragraph.split())
    return re.split(r"(?<=[^.])\.(?: |$)", flat, maxsplit=1)[0].rstrip(":")


def with_tree(readme: str) -> str:
    """The README with the tree of today between its markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tree()}\n{END}{after}"


if __name__ == "__main__":
    page = ROOT / "README.md"
    page.write_text(with_tree(page.read_text(encoding="utf-8")), encoding="utf-8")
