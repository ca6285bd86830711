"""The two published pages, as they lie in the folder of recorded data, and files cut out of them.

Page A lost its indentation and the line ends between its blocks. A file of it is its lines, without what belongs to
the block after it, each at the depth that a digit says; nothing else is changed. Page B is as it was printed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

NAMES = {"A": "000_01bda27fbc5d7ece.txt", "B": "001_1a6e1522e92874f4.txt"}


class Cut(NamedTuple):
    """Lines `first` to `last` of a page, counted from 1, and the depth of each (none: as they stand).

    `starts` and `ends`: where the first begins and the last ends inside a line that another block shares.
    """

    page: str
    first: int
    last: int
    depths: str = ""
    starts: str = ""
    ends: str = ""


CUTS = {
    "custom_opd_loss.py": Cut("A", 64, 88, "0001111011111111111111111"),
    "rollout_opd.py": Cut("A", 89, 122, "0001111011112222111222222222222221", ends="cd openclaw-combine"),
    "hybrid_loss.py": Cut("A", 125, 158, "0011111101111111112111111122112221"),
    "terminal_rollout.py": Cut("A", 197, 230, "0001111112232223333322223333222231", ends="cd gui-rl"),
    "gui_rollout.py": Cut("A", 233, 258, "00011111222233222222233321", ends="cd swe-rl"),
    "toolcall_trainer.py": Cut("A", 265, 289, "0011112111122223444332222", ends="# Configure LoRA"),
    "lora_config.py": Cut("A", 296, 311, "0011112222221111", ends="# Configure Tinker"),
    "custom_reward.py": Cut("A", 366, 399, "0012122221222223222321222223444332"),
    "session_processor.py": Cut("A", 400, 440, "00121222212222234455444421222222333322332"),
    "wandb_logging.py": Cut("A", 441, 464, "001111222101111222222221", ends="# Enable debug"),
    "inspect_sessions.py": Cut("A", 494, 500, "0001111"),
    "training_config.yaml": Cut("A", 319, 349, "0111011111111111111110111101111", ends="{"),
    "evaluation.yaml": Cut("A", 483, 487, "01111", ends="# Reduce"),
    "rollout_config.json": Cut("A", 349, 365, starts="{", ends="# custom"),
    "custom_loss.py": Cut("B", 180, 207),
    "custom_rm.py": Cut("B", 212, 238),
    "session.json": Cut("B", 289, 306),
}


def page(shared_dir: Path, name: str) -> list[str]:
    """The lines of page A or B."""
    return (shared_dir / "published" / NAMES[name]).read_text(encoding="utf-8").split("\n")


def cut(shared_dir: Path, file: str) -> str:
    """One of the published files, as a person would have it who copied it from the page."""
    which = CUTS[file]
    lines = page(shared_dir, which.page)[which.first - 1 : which.last]
    if which.starts:
        lines[0] = lines[0][lines[0].index(which.starts) :]
    if which.ends:
        lines[-1] = lines[-1][: lines[-1].index(which.ends)]
    if which.depths:
        assert len(which.depths) == len(lines), (file, len(which.depths), len(lines))
        lines = ["    " * int(depth) + line for depth, line in zip(which.depths, lines, strict=True)]
    return "\n".join(lines) + "\n"


def write(shared_dir: Path, file: str, folder: Path) -> Path:
    """The same as a file in `folder`."""
    path = folder / file
    path.write_text(cut(shared_dir, file), encoding="utf-8")
    return path
