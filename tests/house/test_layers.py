"""A file imports only from the layers below its own; heavy packages are imported in one place each."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest
from sources import Source, sources

LAYERS: list[set[str]] = [
    {"slime.types", "slime.errors"},
    {"slime.private_files", "slime.messages", "slime.sized_cache"},
    {"slime.algorithms", "slime.monitor", "slime.status"},
    {"slime.fields", "slime.protocols", "slime.progress", "slime.config"},
    {"slime.store", "slime.data", "slime.chat", "slime.plugins", "slime.weights"},
    {"slime.engines", "slime.trainers", "slime.judging", "slime.environments"},
    {"slime.rollout", "slime.publisher", "slime.run_watch", "openclaw"},
    {"slime.compat"},
    {"slime.tools"},
    {"slime.pipeline", "slime.cluster", "openclaw_rl", "openclaw_opd", "openclaw_combine", "openclaw_test"},
    {"slime.preflight"},
    {"train", "openclaw.cli"},
    {"train_grpo"},
]
"""From the bottom up. What stands in one layer does not import its neighbours; within a package all is free."""

PLACES: dict[str, tuple[str, ...]] = {
    "ray": ("slime.cluster",),
    "wandb": ("slime.monitor",),
    "megatron": ("slime.trainers.megatron",),
    "peft": ("slime.trainers",),
    "tinker": ("slime.trainers.tinker",),
    "sglang": (),  # started as a process of its own, never imported
    "vllm": (),
    "playwright": ("gui_rl",),
    "docker": ("slime.environments",),
    "textblob": ("slime.judging",),
    "matplotlib": ("openclaw_test",),
    "typer": ("openclaw.cli",),
}
"""Heavy or particular package → the modules that may import it."""

OURS = {"slime", "openclaw", "openclaw_rl", "openclaw_opd", "openclaw_combine", "openclaw_test", "train", "train_grpo"}
EVERYBODY = OURS - {"train", "train_grpo"}  # the packages' own __init__ files


MODULES = {source.module for source in sources()}


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def component(module: str) -> str | None:
    """The entry of `LAYERS` that a module belongs to, the longest that fits."""
    fitting = [entry for layer in LAYERS for entry in layer if within(module, entry)]
    return max(fitting, key=len, default=None)


def height(entry: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if entry in layer)


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.path)
def test_imports_point_downwards(source: Source):
    own = component(source.module)
    assert own or source.module in EVERYBODY, f"{source.path} stands in no layer; add it to LAYERS"
    for imported in source.imports():
        if imported.module.partition(".")[0] not in OURS or own is None:
            continue
        other = component(imported.module)
        if other is None or other == own:
            continue
        assert height(other) < height(own), f"{source.path}:{imported.line} ({own}) imports {imported.module} ({other})"


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.path)
def test_strings_that_name_our_modules_point_downwards_too(source: Source):
    """`importlib.import_module("slime.compat.names")` is an import, wherever its string stands."""
    own = component(source.module)
    for node in ast.walk(source.tree):
        if own is None or not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        name = node.value.partition(":")[0]
        if not within(name, "slime") or not any(within(name, module) for module in MODULES if module != "slime"):
            continue
        other = component(name)
        if other is not None and other != own:
            place = f"{source.path}:{node.lineno} ({own})"
            assert height(other) < height(own), f"{place} names {node.value!r} ({other})"


def test_no_modules_import_each_other_in_a_circle():
    imported: dict[str, set[str]] = {}
    for source in sources():
        if source.path.endswith("__init__.py"):
            continue  # a package's face is reached through its modules
        found = {module for i in source.imports() for module in (i.module, i.module.rpartition(".")[0])}
        imported[source.module] = (found & MODULES) - {source.module}
    order = TopologicalSorter(imported)
    try:
        order.prepare()
    except CycleError as error:
        pytest.fail("imported in a circle: " + " ◀─ ".join(error.args[1]))


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.path)
def test_heavy_packages_have_one_place_each(source: Source):
    for imported in source.imports():
        places = PLACES.get(imported.module.partition(".")[0])
        if places is not None:
            allowed = any(within(source.module, place) for place in places)
            assert allowed, f"{source.path}:{imported.line} imports {imported.module}; only {places} may"


def test_the_lowest_layers_stay_pure():
    for source in sources():
        outside = {i.module.partition(".")[0] for i in source.imports()} - OURS - sys.stdlib_module_names
        if component(source.module) in ("slime.types", "slime.errors"):
            assert not outside, f"{source.path}: standard library only, not {outside}"
        if component(source.module) == "slime.algorithms":
            assert outside <= {"torch"}, f"{source.path}: torch only, not {outside}"


@pytest.mark.slow
def test_the_core_imports_without_the_heavy_packages():
    modules = [s.module for s in sources() if within(s.module, "slime") and not within(s.module, "slime.cluster")]
    modules = [module for module in modules if not module.endswith("__main__")]
    program = f"""
import importlib, sys
for name in {sorted(PLACES)!r}:
    if name not in ("textblob",):
        sys.modules[name] = None  # import raises ImportError
for module in {modules!r}:
    importlib.import_module(module)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
