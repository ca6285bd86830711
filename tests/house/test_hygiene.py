"""Habits that a reader may rely on, checked where a machine can check them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import PurePath

import pytest
from slime.config.aliases import READ_BY_LIBRARIES
from sources import ROOT, Source, sources, tracked

PUBLISHED_FILES = {"openclaw-combine/utils.py"}
"""People import them under these names, which published pages gave them."""
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80

BY_SOURCE = pytest.mark.parametrize("source", sources(), ids=lambda source: source.path)
SCRIPTS = [path for path in tracked() if path.endswith((".sh", "Makefile")) or path == ".ci/run"]


def test_no_file_or_folder_has_a_name_that_says_nothing():
    for path in set(tracked()) - PUBLISHED_FILES:
        parts = {PurePath(part).stem.lower() for part in PurePath(path).parts}
        assert not parts & FORBIDDEN_NAMES, path


def test_test_modules_have_unique_names():
    names = Counter(PurePath(path).name for path in tracked() if path.startswith("tests/") and path.endswith(".py"))
    for fixture_folder in ("published", "shims"):
        names -= Counter(PurePath(p).name for p in tracked() if f"/{fixture_folder}/" in p)
    twice = [name for name, count in names.items() if count > 1 and name not in ("__init__.py", "conftest.py")]
    assert not twice, f"pytest imports them under one name: {twice}"


@BY_SOURCE
def test_every_file_says_what_it_is_about_and_stays_readable(source: Source):
    text = (ROOT / source.path).read_text(encoding="utf-8")
    assert ast.get_docstring(source.tree), f"{source.path} has no docstring"
    assert text.count("\n") <= MAX_FILE_LINES, f"{source.path} has {text.count(chr(10))} lines"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{source.path}:{node.lineno} {node.name} has {length} lines"


@BY_SOURCE
def test_no_key_of_details_decides_anything(source: Source):
    """They are for people; only rows of earlier programs are read by key."""
    if source.path != "slime/slime/store/earlier.py":
        text = (ROOT / source.path).read_text(encoding="utf-8")
        found = re.search(r"\bdetails(?:\[|\.(?:get|pop)\()", text)
        assert found is None, f"{source.path}: {found.group()}… reads a key; give it a field"


@BY_SOURCE
def test_no_exception_is_caught_unseen(source: Source):
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            place = f"{source.path}:{node.lineno}"
            assert node.type is not None, f"{place}: a bare except catches even the wish to stop"
            broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            silent = all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)
            assert not (broad and silent), f"{place}: swallows everything"


@BY_SOURCE
def test_no_code_is_run_from_data_and_no_process_is_killed_by_name(source: Source):
    for imported in source.imports():
        root = imported.module.partition(".")[0]
        assert root not in ("pickle", "cPickle", "dill", "cloudpickle"), f"{source.path}:{imported.line}: pickle"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle", "shell"):
            off = isinstance(node.value, ast.Constant) and node.value.value is False
            assert off, f"{source.path}:{node.value.lineno}: {node.arg}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "eval", "exec", "os.system"):
            raise AssertionError(f"{source.path}:{node.lineno}: {ast.unparse(node.func)}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            assert node.value not in ("pkill", "killall"), f"{source.path}:{node.lineno}: {node.value}"


@pytest.mark.parametrize("path", SCRIPTS)
def test_scripts_stop_only_what_they_started(path: str):
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        code = line.split("#", 1)[0]
        assert not re.search(r"\b(pkill|killall)\b|\bray stop\b|\bkill -9\b", code), f"{path}:{number}: {line.strip()}"


@BY_SOURCE
def test_the_environment_is_read_in_one_file(source: Source):
    if source.path == "slime/slime/config/loader.py":
        return
    for node in ast.walk(source.tree):
        text = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        reads = text.startswith(("os.getenv(", "os.environ.get(")) or (
            isinstance(node, ast.Subscript) and text.startswith("os.environ[") and isinstance(node.ctx, ast.Load)
        )
        if reads and any(f"'{name}'" in text for name in READ_BY_LIBRARIES):  # passed on to the process they are for
            continue
        assert not reads, f"{source.path}:{getattr(node, 'lineno', 0)}: {text}: settings come from slime.config"


def test_nothing_unfinished_is_left_about():
    mark = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    for path in tracked():
        if path.endswith((".py", ".sh", ".md", ".toml")):
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                assert not mark.search(line), f"{path}:{number}: {line.strip()}"
    for source in sources():
        for node in ast.walk(source.tree):
            stub = isinstance(node, ast.Raise) and node.exc and ast.unparse(node.exc).startswith("NotImplementedError")
            assert not (stub and "(" not in ast.unparse(node)), f"{source.path}:{node.lineno}: nothing is built here"


def test_no_folder_is_there_for_later():
    for path in tracked():
        text = (ROOT / path).read_bytes() if (ROOT / path).is_file() else b"x"
        assert text.strip() or path.endswith("__init__.py"), f"{path} is empty"
        assert not path.endswith(".gitkeep"), path
