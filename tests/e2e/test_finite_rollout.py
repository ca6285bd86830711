"""A rollout that ends: what it gave is trained and saved, and `slime/train.py` ends with exit status 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from slime.monitor import read_metrics
from slime.status import read_status

TRAIN = Path(__file__).resolve().parents[2] / "slime" / "train.py"
ROLLOUT = """
from slime.types import Sample, SampleGroup


async def generate_rollout(config):
    for number in range(8):
        streams = {
            "loss_mask": (0, 1, 1),
            "rollout_logprobs": (0.0, -4.0, -4.0),
            "policy_versions": (-1, 0, 0),
        }
        sample = Sample((5, 6, 7 + number), streams, {"reward": (-1.0) ** number, "temperature": 1.0}, ())
        yield SampleGroup(f"g{number}", (sample,))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_samples_in_batches_of_four_make_two_updates_a_checkpoint_and_exit_0(chat_model: Path, tmp_path: Path):
    (tmp_path / "custom_rollout.py").write_text(ROLLOUT)
    command = [
        *(sys.executable, str(TRAIN), "--model-path", str(chat_model), "--no-serve", "--rollout-batch-size", "4"),
        *("--rollout-function-path", str(tmp_path / "custom_rollout.py"), "--save-interval", "50"),
        *("--save-dir", str(tmp_path / "save"), "--run-dir", str(tmp_path / "run")),
        *("--rl-buffer-dir", str(tmp_path / "buffer"), "--lr", "1e-3", "--kl-loss-coef", "0"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [entry["train/samples"] for entry in read_metrics(tmp_path / "run")] == [4, 4]
    assert (tmp_path / "save" / "checkpoint-2" / "state.json").is_file()
    status = read_status(tmp_path / "run")
    assert (status.state, status.step, status.version, status.trained) == ("done", 2, 2, 8)
