"""From a path that the user wrote to the object it names.

    folder/file.py            the hook's default name in that file
    folder/file.py:name
    package.module:name
    package.module.name

A file becomes a module with a stable name: `openclaw-rl/custom_loss.py` is `openclaw_rl.custom_loss`, so relative
imports work in folders with dashes too; where another module has that name, it carries a hash of the
folder instead. While a file is loaded its folder is importable; two folders may both have a `prompts.py`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from slime.errors import PluginError, nearest

_FILE_PATH = re.compile(r"(?P<file>.+\.py)(?::(?P<name>\w+))?")
_MODULE_PATH = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.\w+)*)(?::(?P<name>\w+))?")


def load_object(
    path: str, default_names: Sequence[str], *, flag: str = "", provided: Mapping[str, Any] | None = None
) -> Any:
    """The object that `path` names, in one of the four forms above.

    Args:
        default_names: what it is called when the path does not say; the first that exists is taken.
        flag: where the user wrote the path, for messages.
        provided: globals that published files use without defining them; put where the file leaves them undefined.

    Raises:
        PluginError: one line: no such file, it does not load, it holds no such name.
    """
    where = f"{flag} {path}".strip()
    if match := _FILE_PATH.fullmatch(path):
        wanted = [match["name"]] if match["name"] else list(default_names)
        if answer := _answer_to(Path(match["file"]), wanted):
            raise PluginError(f"{where}: {answer}")
    module, name = _module_and_name(path, where)
    for key, value in (provided or {}).items():
        if not hasattr(module, key):
            setattr(module, key, value)
    wanted = [name] if name else list(default_names)
    for candidate in wanted:
        if hasattr(module, candidate):
            return getattr(module, candidate)
    own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    own = [key for key in own if getattr(vars(module)[key], "__module__", None) == module.__name__]
    there = f"; it has {', '.join(own)}" if own else ""
    raise PluginError(f"{where}: no {' or '.join(wanted)} in it{there}{nearest(wanted[0], own)}")


def _module_and_name(path: str, where: str) -> tuple[ModuleType, str | None]:
    if match := _FILE_PATH.fullmatch(path):
        return load_file(Path(match["file"]), where), match["name"]
    match = _MODULE_PATH.fullmatch(path)
    if match is None:
        raise PluginError(
            f"{where}: write folder/file.py, folder/file.py:name, package.module:name or package.module.name"
        )
    dotted, name = match["module"], match["name"]
    if name is None and not _is_module(dotted):
        dotted, _, name = dotted.rpartition(".")
    if not dotted or not _is_module(dotted):
        raise PluginError(f"{where}: no module {dotted or path!r}; a file is written with its .py: folder/file.py")
    with _explained(where):
        return importlib.import_module(dotted), name


def _is_module(dotted: str) -> bool:
    try:
        return importlib.util.find_spec(dotted) is not None
    except ModuleNotFoundError:  # a parent is missing, or is no package
        return False


def load_file(file: Path, where: str = "") -> ModuleType:
    """The module of a file; the same file gives the same module."""
    where = where or str(file)
    if not file.is_file():
        siblings = [str(sibling) for sibling in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise PluginError(f"{where}: no such file{nearest(str(file), siblings)}")
    file = file.resolve()
    with _explained(where):
        package = _package(file.parent)
        name = package + "." + re.sub(r"\W", "_", file.stem)
        known = sys.modules.get(name)
        if known is not None and getattr(known, "__file__", None) == str(file):
            return known
        with _importable(file.parent):
            return _executed(importlib.util.spec_from_file_location(name, file))


def _executed(spec: importlib.machinery.ModuleSpec | None) -> ModuleType:
    """The module of a spec; forgotten again where it does not load."""
    assert spec is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        if spec.loader is not None:  # a folder without an __init__.py has none
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _package(folder: Path) -> str:
    """The name of the package that a folder's files live in, made if need be."""
    name = re.sub(r"\W", "_", folder.name) or "root"
    found = sys.modules.get(name) or (importlib.util.find_spec(name) if name.isidentifier() else None)
    places = list(getattr(found, "__path__", None) or getattr(found, "submodule_search_locations", None) or [])
    if any(Path(place).resolve() == folder for place in places):
        importlib.import_module(name)
        return name
    if found is not None or not name.isidentifier():
        name = f"plugin_{name}_{hashlib.blake2b(str(folder).encode(), digest_size=4).hexdigest()}"
    if name not in sys.modules:
        init = folder / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
        if not init.is_file():
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
        _executed(spec)
    return name


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let `import sibling` find what lies in `folder`, and forget those names afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if "." not in name and origin and Path(origin).parent == folder:
                del sys.modules[name]


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn whatever the user's file raises while it loads into one line that names the line."""
    try:
        yield
    except PluginError:
        raise
    except SyntaxError as error:
        raise PluginError(f"{where}: line {error.lineno}: {error.msg}") from None
    except Exception as error:  # the user's own code ran: anything may come out of it
        message = " ".join(str(error).split())
        raise PluginError(f"{where}: line {_line(error)}: {type(error).__name__}: {message}") from error


def _line(error: BaseException) -> int:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return (frames[-1].lineno or 0) if frames else 0


def describe(function: Any) -> str:
    """How messages name a function: `custom_loss.py:compute_loss`."""
    target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    file = inspect.getsourcefile(target) or "?"
    return f"{Path(file).name}:{target.__qualname__}"


_LOOP = (
    "agent loops of this style are --custom-generate-function-path, with --prompt-data: write "
    "async def generate(args, sample, sampling_params)"
)

_ANSWERS = {
    "collect_opd_trajectory": f"{_LOOP}; hints and teachers are openclaw-opd's own, on conversations",
    "terminal_rollout": f"{_LOOP}; terminal environments are not built yet",
    "gui_rollout": f"{_LOOP}; screens and vision models are not built yet",
    "train_toolcall_agent": f"{_LOOP}; tool environments are not built yet, and slime/train.py trains",
    "SessionAwareProcessor": (
        "turns are kept by session and trained as one trajectory in any case; the class, for looking at rollouts, is "
        "openclaw_combine.session_processor.SessionAwareProcessor"
    ),
    "setup_lora_model": (
        "an adapter is set up by flags: --use-lora --lora-rank 16 --lora-alpha 32 --lora-dropout 0.1 "
        "--lora-target-modules q_proj,k_proj,v_proj,o_proj"
    ),
    "setup_wandb_logging": "Weights & Biases is set up by flags: --use-wandb, with WANDB_MODE=online",
}
"""What a published file defines → what does its job here."""


def _answer_to(file: Path, wanted: list[str]) -> str:
    """What to do instead of naming a file of the published pages; empty where it may be a plug-in.

    The file is read and not run: such sketches import what is not there and call what they do not define.

    Args:
        wanted: the names that the hook would take.

    >>> _answer_to(Path("rollout_opd.py"), ["generate_rollout"])
    'agent loops of this style are --custom-generate-function-path, …'
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # loading it says what is wrong with it
        return ""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [node.name for node in tree.body if isinstance(node, kinds)]
    if any(name in defined and name not in _ANSWERS for name in wanted):
        return ""
    return next((_ANSWERS[name] for name in defined if name in _ANSWERS), "")
