"""Kinds of engine: each a file that says what it does differently, and a name that `--backend` takes."""

from __future__ import annotations

import sys
import typing
from pathlib import Path

import pytest
from random_model import build_random_model
from slime.config.loader import resolve
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines import backends
from slime.engines.backends import Backend, backend_named, check_engine
from slime.engines.client import HttpEngine
from slime.engines.launch import start_engine
from slime.errors import ConfigError
from slime.protocols import GenerateRequest
from slime.types import SamplingParams

THE_FILE = '''
"""An engine that greets."""

import sys

from slime.engines.backends import Backend, Launch


def command(launch):
    return [sys.executable, "-m", "slime.engines.scripted", *launch.shared, "--reply", "Good morning."]


BACKEND = Backend(command)
'''


async def test_an_engine_of_another_kind_is_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(THE_FILE)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    engine = EngineConfig(backend="greeting")  # type: ignore[arg-type]  # the line elsewhere is this name
    model = ModelConfig(model_path=str(build_random_model(tmp_path / "model")), device="cpu")
    process = await start_engine(model, engine, log_path=tmp_path / "engine.log")
    try:
        async with HttpEngine(process.url) as client:
            assert (await client.generate(GenerateRequest("r", (1, 2), SamplingParams()))).text == "Good morning."
    finally:
        await process.stop()


def test_every_name_that_may_be_typed_is_a_file_and_every_file_a_name() -> None:
    names = typing.get_args(typing.get_type_hints(EngineConfig)["backend"])
    files = {file.stem for file in Path(backends.__file__).parent.glob("*.py")} - {"__init__"}
    assert set(names) == files
    assert all(isinstance(backend_named(name), Backend) for name in names)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--backend sglang: SGLang is not installed for "),
        (["--sglang-python", "/nowhere/python"], "--sglang-python /nowhere/python: cannot be run"),
        (["--sglang-python", sys.executable], "SGLang is not installed there; see docs/sglang.md"),
    ],
)
def test_an_engine_that_is_not_installed_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        check_engine(resolve(["--backend", "sglang", *flags], {}).config.engine)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_engine_that_is_attached_needs_no_sglang_here() -> None:
    check_engine(resolve(["--backend", "sglang", "--engine-url", "http://10.0.0.1:30000"], {}).config.engine)
