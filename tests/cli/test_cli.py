"""The console script: quick to answer, one line for a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slime.config.leaves import leaves
from slime.status import Status, write_status


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_the_commands():
    done = run("--help")
    assert done.returncode == 0
    for command in ("export", "import", "rejudge", "demo", "tiny-model", "replay-traffic", "status"):
        assert command in done.stdout


@pytest.mark.parametrize("command", [("rejudge",), ("judge", "calibrate")])
def test_help_of_a_command_that_takes_the_judges_flags_lists_them_all(command: tuple[str, ...]):
    done = run(*command, "--help")
    assert done.returncode == 0
    missing = [leaf.flag for leaf in leaves().values() if leaf.section == "judge" and leaf.flag not in done.stdout]
    assert not missing
    assert "--rollout-batch-size" not in done.stdout


def test_nothing_heavy_is_imported_before_it_is_asked_for():
    program = "import sys, openclaw.cli; print([m for m in ('torch', 'transformers', 'ray') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_merging_an_adapter_into_another_model_is_refused_in_one_line(tmp_path: Path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for arguments, complaint in (
        ((tmp_path / "base", adapter, tmp_path / "out"), "base: no such directory"),
        ((tmp_path / "base", adapter, adapter), "already exists"),
    ):
        done = run("merge-adapter", *map(str, arguments))
        assert done.returncode != 0
        assert complaint in done.stderr
        assert done.stderr.count("\n") == 1


def test_status_prints_what_a_run_says_of_itself(tmp_path: Path):
    write_status(
        tmp_path, Status("stalled", step=5, version=6, made=90, trained=80, dropped={"stale": 10}, reason="why")
    )
    done = run("status", "--run-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for words in ("state    stalled", "updates  5", "version 6", "90 made, 80 trained", "stale 10", "reason   why"):
        assert words in done.stdout
    none = run("status", "--run-dir", str(tmp_path / "none"))
    assert (none.returncode, none.stderr.count("\n")) == (2, 1)
    assert "name its --run-dir" in none.stderr


def test_a_missing_recording_is_one_line_and_exit_code_2(tmp_path: Path):
    done = run("replay-traffic", str(tmp_path / "none.jsonl"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("openclaw-rl: error: ")
    assert done.stderr.count("\n") == 1


def test_replaying_recorded_traffic_prints_a_json_line_each(shared_dir: Path):
    done = run("replay-traffic", str(shared_dir / "data/agent-traffic/openclaw.jsonl.gz"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > 100
    assert all(line.keys() == {"client", "i", "conversation", "kind", "continues"} for line in lines)


def test_a_reader_that_has_seen_enough_is_no_error(shared_dir: Path):
    recording = shared_dir / "data/agent-traffic/requests.jsonl.gz"
    pipe = f"{sys.executable} -m openclaw.cli replay-traffic {recording} | head -n 1"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["continues"] is None
    assert done.stderr == ""
