"""GRPO on a prompt set, as a whole run: prompts from a file, our engine, a reward of the user's, the trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from slime.monitor import read_metrics

ROOT = Path(__file__).resolve().parents[2]

REWARD = """
async def custom_rm(args, sample, **kwargs):
    return float(sum(1 for character in sample.response if character == sample.label))
"""


def train_on_prompts(folder: Path, flags: Sequence[str]) -> list[dict[str, Any]]:
    """A whole run in a folder with five prompts and a reward; the figures of its updates."""
    rows = [{"input": f"say {letter}", "label": letter} for letter in "aeiou"]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "custom_rm.py").write_text(REWARD)
    done = subprocess.run(
        [sys.executable, str(ROOT / "slime" / "train.py"), *flags],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return read_metrics(folder / "run")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_prompt_run_with_an_adapter_goes_on_learning_from_it(tmp_path: Path, chat_model: Path):
    """Replies are the adapter's: their age stays in bounds, however many updates are made."""
    flags = [
        *("--model-path", str(chat_model), "--prompt-data", "tasks.jsonl", "--label-key", "label", "--use-lora"),
        *("--apply-chat-template", "--custom-rm-path", "custom_rm.py:custom_rm", "--no-serve"),
        *("--num-rollouts-per-prompt", "4", "--rollout-batch-size", "8", "--max-staleness", "2"),
        *("--advantage-estimator", "grpo", "--default-max-tokens", "8", "--lr", "3e-3", "--num-rollout", "9"),
        *("--run-dir", "run", "--save-dir", "save", "--rl-buffer-dir", "turns"),
    ]
    steps = train_on_prompts(tmp_path, flags)
    assert [step["step"] for step in steps] == list(range(1, 10))
    assert max(step["queue/staleness_max"] for step in steps) <= 2
    # The adapter moves the policy: had the base answered, engine and trainer would drift apart.
    drift = [step["train/train_rollout_logprob_abs_diff"] for step in steps]
    assert max(drift) < 0.3, drift


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_grpo_on_a_prompt_set(tmp_path: Path, chat_model: Path):
    flags = [
        *("--model-path", str(chat_model), "--prompt-data", "tasks.jsonl", "--label-key", "label"),
        *("--apply-chat-template", "--custom-rm-path", "custom_rm.py:custom_rm"),
        *("--num-rollouts-per-prompt", "4", "--rollout-batch-size", "8", "--max-staleness", "1"),
        *("--advantage-estimator", "grpo", "--default-max-tokens", "12", "--lr", "1e-3", "--num-rollout", "3"),
        *("--eval-prompt-data", "held=tasks.jsonl@[0:2]", "--eval-interval", "3"),
        *("--run-dir", "run", "--save-dir", "save", "--rl-buffer-dir", "turns", "--port", "0"),
    ]
    steps = train_on_prompts(tmp_path, flags)
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert step["train/samples"] == 8
        assert step["queue/staleness_max"] <= 1
        assert step["train/train_rollout_logprob_abs_diff"] < 0.3, "trained under weights at most one update newer"
    assert steps[0]["train/train_rollout_logprob_abs_diff"] < 1e-3, "the first batch is on-policy: same weights"
    assert 0 <= steps[-1]["eval/held"] <= 12
    assert (tmp_path / "save" / "rollout" / "prompts-3.json").exists()
