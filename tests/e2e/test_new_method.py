"""The folder that `new-method` writes is sound, and trains as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slime.errors import ConfigError
from slime.monitor import read_metrics
from slime.plugins.losses import load_loss

from openclaw.new_method import new_method

ROOT = Path(__file__).resolve().parents[2]


def test_its_files_load_under_the_name_of_the_method(tmp_path: Path):
    folder = new_method("two-word-method", tmp_path)
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["README.md", "custom_loss.py", "custom_rollout.py", "run_tiny_two_word_method.sh"]
    loss = load_loss(str(folder / "custom_loss.py"))
    assert loss.is_sum_over_samples
    assert "Two word method" in (folder / "README.md").read_text()
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--isolated", "--line-length", "120", str(folder)]
    assert subprocess.run(ruff, capture_output=True, timeout=30, check=False).returncode == 0


@pytest.mark.parametrize("name", ["My-Method", "../x", "-x", "a_b", ""])
def test_names_that_cannot_be_a_folder_and_a_package_are_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="use lower case with dashes"):
        new_method(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        new_method("mine", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_at_once(tmp_path: Path, chat_model: Path):
    """With the settings of its script, on recorded conversations, so that nobody has to talk."""
    made = subprocess.run(
        [sys.executable, "-m", "openclaw.cli", "new-method", "my-method", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    script = tmp_path / "my-method" / "run_tiny_my_method.sh"
    assert made.stdout.split() == ["bash", str(script)]
    turns = [{"type": "main", "prompt": f"question {i}", "response": "four", "next_state": "Thanks!"} for i in range(4)]
    talks = tmp_path / "talks.jsonl"
    talks.write_text("".join(json.dumps({"session_id": f"s{i}", "turns": [t]}) + "\n" for i, t in enumerate(turns)))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"MODEL_PATH": str(chat_model), "DATA_PATH": str(talks), "CKPT_SAVE_DIR": str(tmp_path / "save")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    flags = ["--rollout-batch-size", "2", "--run-dir", str(tmp_path / "run"), "--no-serve"]
    resolved = subprocess.run(
        ["bash", str(script), *flags, "--print-config"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (tmp_path / "run.yaml").write_text(resolved.stdout)
    done = subprocess.run(
        [sys.executable, str(ROOT / "slime" / "train.py"), "--config", str(tmp_path / "run.yaml")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    steps = read_metrics(tmp_path / "run")
    assert [step["step"] for step in steps] == [1, 2]
    assert all(step["loss/policy"] == step["loss/policy"] and "loss/kl" in step for step in steps)
    assert (tmp_path / "save" / "checkpoint-2" / "weights").is_dir()
