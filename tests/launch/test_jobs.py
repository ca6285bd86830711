"""Runs inside a Ray job that somebody submitted: what they write lies where it was said, or nothing starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
from test_launch import looks_like_a_model

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import os, sys
from slime.config.loader import load_config
config = load_config(prog="python slime/train.py")
print(f"job={os.environ['JOB']} save_dir={config.checkpoint.save_dir} run_dir={config.monitor.run_dir}", flush=True)
"""
SCRIPTS = ("slime/scripts/launch.sh", "slime/scripts/run_method.sh", "openclaw-combine/run_tiny_openclaw_combine.sh")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def environ() -> Iterator[dict[str, str]]:
    """How a Ray head of this module's is reached, on a machine where another Ray's agent has the usual port."""
    with socket.socket() as usual:
        with contextlib.suppress(OSError):  # another process has it already
            usual.bind(("127.0.0.1", DEFAULT_DASHBOARD_AGENT_LISTEN_PORT))
            usual.listen()
        yield from started_head()


def started_head() -> Iterator[dict[str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OPENCLAW_"))}
    said |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token"}
    said |= {"RAY_AUTH_TOKEN": "5" * 64, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "slime.cluster.head", str(port)]
    head = subprocess.Popen(command, env=said, stdout=subprocess.PIPE, text=True)
    assert head.stdout is not None
    try:
        assert "takes jobs\n" in iter(head.stdout.readline, ""), f"the head ended with {head.wait(60)}"
        yield said | {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}"}
    finally:
        head.terminate()
        head.wait(timeout=60)
        head.stdout.close()


@pytest.fixture
def submit(environ: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Submits as the published pages do, from a method's folder in a small copy of the repository."""
    for file in SCRIPTS:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "slime/train.py").write_text(PROGRAM)
    for name in ("custom_loss.py", "custom_rollout.py"):
        shutil.copy(ROOT / "openclaw-combine" / name, tmp_path / "openclaw-combine" / name)
    looks_like_a_model(tmp_path / "model")
    (tmp_path / "my-method").mkdir()
    variables = f'{{"env_vars": {{"JOB": "mine", "MODEL_PATH": "{tmp_path / "model"}"}}}}'

    def submitted(*command: str) -> subprocess.CompletedProcess[str]:
        given = ["ray", "job", "submit", "--working-dir", "..", "--runtime-env-json", variables, "--", *command]
        return subprocess.run(
            given, cwd=tmp_path / "my-method", env=environ, capture_output=True, text=True, timeout=240, check=False
        )

    return submitted


def test_the_published_method_script_is_answered_in_one_line_and_runs_with_one_thing_added(submit, tmp_path):
    published = ["python", "slime/train.py", "--save-dir", "./checkpoints/my-method"]
    refused = submit(*published)
    assert refused.returncode != 0
    lines = [line for line in refused.stdout.splitlines() if "python slime/train.py: error:" in line]
    assert lines, refused.stdout + refused.stderr
    assert "--save-dir checkpoints/my-method" in lines[0]
    assert 'add --base-dir "$PWD"' in lines[0]
    taken = submit(*published, "--base-dir", str(tmp_path / "my-method"))
    assert taken.returncode == 0, taken.stdout + taken.stderr
    where = tmp_path / "my-method"
    assert f"job=mine save_dir={where}/checkpoints/my-method run_dir={where}/runs/default" in taken.stdout


def test_a_launch_script_in_a_job_is_that_job(submit, tmp_path):
    """It submits no second job, and nothing is written into Ray's copy."""
    script = ["bash", "openclaw-combine/run_tiny_openclaw_combine.sh"]
    refused = submit(*script)
    assert refused.returncode != 0
    assert "which a Ray job does not know" in refused.stdout, refused.stdout
    taken = submit(*script, "--base-dir", str(tmp_path / "out"))
    assert taken.returncode == 0, taken.stdout + taken.stderr
    runs = tmp_path / "out/runs/tiny-openclaw-combine"
    assert f"job=mine save_dir={runs}/checkpoints run_dir={runs}" in taken.stdout
