"""The tree in README.md: one line per folder, made from what each folder says about itself.

    python tests/house/tree.py        writes it between the markers

A package's line is the first sentence of its docstring; other folders are described here. Folders of tests are named
after the folder that they test, so the tree ends at `tests/`.
"""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from sources import ROOT, tracked

BEGIN, END = "<!-- tree: written by tests/house/tree.py -->", "<!-- /tree -->"

FOLDERS = {
    ".ci": "The CI pipeline",
    "benchmarks": "Benchmarks of speed and learning, each against a baseline in the same run",
    "benchmarks/gpu": "Benchmarks that need a GPU, the parts of on_gpu.sh",
    "benchmarks/learning": "Benchmarks of learning: corrections for staleness, reproducibility of the tiny model",
    "benchmarks/random_weights": "Engine and trainer on random weights: prefix caching, throughput, adapters, packing",
    "benchmarks/results": "Recorded results, with the machine and the command",
    "docs": "Architecture, configuration, judging, algorithms, plug-ins, security",
    "slime": "The training core as a pip project, and `train.py`, the entry point of a run",
    "slime/scripts": "Shared by all launch scripts: `ray job submit … python slime/train.py`",
    "tests": "One folder per folder of the product; `tests/house` checks the structure itself",
}
"""What folders without a docstring hold."""

ENDS_HERE = ("tests",)

SPEECHLESS = {
    ".gitignore": "what git leaves alone",
    "LICENSE": "Apache-2.0",
    "benchmarks/results/methods.png": "how many sessions each method needs, beside a memory and best-of-n",
    "pyproject.toml": "the packages outside slime/, and the settings of ruff, mypy and pytest",
    "requirements.txt": "what `pip install -r` needs: both packages, editable, on a CPU build of torch",
    "slime/pyproject.toml": "the training core as a pip project",
    "slime/slime/judging/next_states.jsonl": "what people and tools said next, with the score it means",
    "tests/judging/unseen_reactions.jsonl": "Sixty reactions with labels, written before the forms that read them",
    "tests/house/flags.txt": "every flag there is, frozen",
    "tests/store/earlier/buffer.sql": "a buffer of schema 3, as an earlier program left it",
    "tests/store/earlier/sessions.jsonl": "its sessions, as that program exported them",
    "tests/sglang/requirements.txt": "what the real SGLang needs on a CPU",
}
"""Files that cannot hold a docstring, a title or a comment."""
_WIDTH = 22


def tree() -> str:
    """The block, as Markdown."""
    lines = []
    for folder in folders():
        depth = folder.count("/")
        entry = f"{'  ' * depth}{PurePath(folder).name}/"
        lines.append(f"{entry:<{_WIDTH}} {about(folder)}")
    return "```text\n" + "\n".join(lines) + "\n```"


def folders() -> list[str]:
    """Every folder with a tracked file, parents before children; none below `ENDS_HERE`."""
    found = {str(parent) for path in tracked() for parent in PurePath(path).parents} - {"."}
    return sorted(
        (folder for folder in found if not folder.startswith(tuple(f"{end}/" for end in ENDS_HERE))),
        key=lambda folder: PurePath(folder).parts,
    )


def about(folder: str) -> str:
    """What a folder says about itself, in one line. Raises ValueError if it says nothing."""
    if folder in FOLDERS:
        return FOLDERS[folder]
    if f"{folder}/__init__.py" in tracked():
        return description(f"{folder}/__init__.py")
    raise ValueError(f"{folder} cannot say what it holds; describe it in FOLDERS")


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
