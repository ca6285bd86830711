"""What can be known before a program starts is said before it starts, in one line, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from slime.config.checks.startup import check_startup, warnings
from slime.config.loader import resolve
from slime.errors import ConfigError


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """The files that are looked for; nothing loads them."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("tokenizer.json", "model.safetensors"):
        (directory / name).touch()
    return directory


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--judge", "llm", "--judge-model", "gpt-4"], "--judge-model gpt-4 is served by somebody: give --judge-url"),
        (["--judge-model-path", "gpt-4"], "--judge-model-path gpt-4: no such directory; a model behind an API is"),
        (["--judge-model-path", "/nowhere/judge"], "--judge-model-path /nowhere/judge: no such directory"),
        (
            ["--method", "opd", "--teacher-model-path", "/nowhere/t"],
            "--teacher-model-path /nowhere/t: no such directory",
        ),
        (
            ["--publish-interval", "6"],
            "--publish-interval 6: engines would fall 5 updates behind, and --max-staleness 4",
        ),
        (
            ["--use-lora", "--adapter-per", "user", "--save-interval", "2"],
            "--adapter-per user: each update is one user's, served and saved; leave --save-interval out",
        ),
        (
            ["--resume-from-checkpoint", "/nowhere/checkpoint-500"],
            "--resume-from-checkpoint /nowhere/checkpoint-500: no",
        ),
        (["--resume-from-checkpoint", "{model}"], "no state.json in it; name a directory checkpoint-N"),
        (["--use-wandb"], "--use-wandb needs the package wandb, which is not installed: pip install wandb"),
        (["--use-lora"], "--use-lora needs the package peft, which is not installed: pip install peft"),
        (["--lora-rank", "64"], "add --use-lora"),
        (["--engine-gpus", "0"], "--engine-gpus 0 is the server's"),
        (["--judge-quorum", "4"], "--judge-quorum 4 can never be reached with --majority-vote-n 3"),
    ],
)
def test_a_start_that_cannot_succeed_is_refused_in_one_line(model_dir, monkeypatch, argv, words):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = resolve(["--model-path", str(model_dir), *(flag.format(model=model_dir) for flag in argv)], {}).config
    with pytest.raises(ConfigError) as caught:
        check_startup(config)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_there_is_accepted(model_dir, tmp_path):
    checkpoint = tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    (checkpoint / "state.json").touch()
    argv = ["--model-path", model_dir, "--judge-model-path", model_dir, "--resume-from-checkpoint", checkpoint]
    check_startup(resolve([str(word) for word in argv], {}).config)
    named = ["--judge", "llm", "--judge-model", "gpt-4", "--judge-url", "http://127.0.0.1:9/v1"]
    check_startup(resolve(["--model-path", str(model_dir), *named], {}).config)


def test_a_wrong_checkpoint_is_answered_with_those_that_are_there(model_dir, tmp_path):
    (tmp_path / "checkpoint-7").mkdir()
    argv = ["--model-path", str(model_dir), "--resume-from-checkpoint", f"{tmp_path}/checkpoint-500"]
    with pytest.raises(ConfigError, match=f"no such checkpoint; there are {tmp_path}/checkpoint-7"):
        check_startup(resolve(argv, {}).config)


def test_a_model_that_hardly_fits_is_warned_about(model_dir):
    with (model_dir / "model.safetensors").open("wb") as file:
        file.truncate(16_400_000_000)  # sparse: 8.2 G parameters in bf16
    argv = ["--model-path", str(model_dir), "--train-gpus", "0"]
    (line,) = warnings(resolve(argv, {}).config)
    assert line.startswith("all 8.2 G weights are trained, and each rank holds all: about 148 GB on every training GPU")
    assert list(warnings(resolve([*argv, "--use-lora"], {}).config)) == []
    (model_dir / "chat_template.jinja").write_text("<tool_call>\n<function={{ name }}>")
    (line,) = warnings(resolve([*argv, "--use-lora"], {}).config)
    assert "an agent gets them as text" in line


def test_checking_needs_no_torch(model_dir):
    program = (
        "import sys; from slime.config.loader import resolve; from slime.config.checks.startup import check_startup; "
        f"check_startup(resolve(['--model-path', {str(model_dir)!r}], {{}}).config); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
