"""The repository seen as files, modules and imports."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "slime/slime": "slime",
    "openclaw": "openclaw",
    "openclaw-rl": "openclaw_rl",
    "openclaw-opd": "openclaw_opd",
    "openclaw-combine": "openclaw_combine",
    "openclaw-test": "openclaw_test",
}
"""Folder → the name its files are imported under."""


@functools.cache
def tracked() -> tuple[str, ...]:
    """Every tracked file that exists, as a path from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(name for name in listed.split("\0") if name and (ROOT / name).exists()))


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    module: str
    line: int
    is_lazy: bool


@dataclass(frozen=True)
class Source:
    """A Python file of the product (tests and benchmarks are none)."""

    path: str
    module: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """What relative imports start from."""
        return self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]

    def imports(self) -> Iterator[Import]:
        """Every import, those inside functions and `if TYPE_CHECKING` included."""
        top = set(self.tree.body)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, node not in top)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = self.package.split(".")
                    base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
                for alias in node.names:
                    yield Import(f"{base}.{alias.name}", node.lineno, node not in top)


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the product."""
    found = []
    for path in tracked():
        module = module_of(path)
        if module:
            found.append(Source(path, module, ast.parse((ROOT / path).read_text(encoding="utf-8"), path)))
    return tuple(found)


def module_of(path: str) -> str | None:
    """`slime/slime/store/states.py` → `slime.store.states`; None for what is no product file."""
    if path in ("slime/train.py", "slime/train_grpo.py"):
        return path.removeprefix("slime/").removesuffix(".py")
    for folder, package in PACKAGES.items():
        if path.startswith(folder + "/") and path.endswith(".py"):
            inside = path.removeprefix(folder + "/").removesuffix(".py").removesuffix("__init__").rstrip("/")
            return ".".join([package, *inside.split("/")]) if inside else package
    return None
