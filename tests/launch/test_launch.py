"""The launch script against a real Ray, with a small program in the place of the training run."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from slime.cluster.session import worker_environment
from slime.config.sections import ClusterConfig

ROOT = Path(__file__).resolve().parents[2]

MARK = "OPENCLAW_TEST_LAUNCH"

PROGRAM = """
import os, sys, psutil
from slime.config.loader import load_config
mark = os.environ["OPENCLAW_TEST_LAUNCH"]
raylets = [p for p in psutil.process_iter() if p.name() == "raylet" and p.environ().get("OPENCLAW_TEST_LAUNCH") == mark]
print(f"raylets={len(raylets)}")
config = load_config(prog="train.py")
print(f"cwd={os.getcwd()} name={config.monitor.run_name} votes={config.judge.majority_vote_n}", flush=True)
sys.exit(3 if config.monitor.run_name == "fail" else 0)
"""


def looks_like_a_model(directory: Path) -> Path:
    """The files that are looked for before a run starts; nothing loads them here."""
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors"):
        (directory / name).touch()
    return directory


@pytest.fixture
def launch(tmp_path: Path):
    """Runs the script from a copy of the repository that holds only it and the program."""
    (tmp_path / "slime/scripts").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "slime/slime/engines").mkdir(parents=True)
    for file in ("slime/scripts/launch.sh", "slime/slime/engines/die_with_parent.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "slime/train.py").write_text(PROGRAM)
    model_dir = looks_like_a_model(tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environ |= {
        MARK: str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "DASHBOARD_PORT": str(port),
        "MODEL_PATH": str(model_dir),
    }

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "../slime/scripts/launch.sh", *arguments],
            cwd=tmp_path / "elsewhere",
            env=environ | variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


@pytest.fixture
def _usual_agent_port_is_taken():
    """As by another Ray of this machine; if there is one, it has it already."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("", 52365)))
        yield


def left_running(folder: Path) -> list[str]:
    """What the launch in `folder` started and still runs: all of it inherits a variable from the launch.

    Ray's own helpers see that their parent is gone, and need a moment for it.
    """
    deadline = time.monotonic() + 20
    while (found := marked(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def marked(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has just ended, or is not ours to ask
            if process.environ().get(MARK) == str(folder):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_usual_agent_port_is_taken")
def test_a_run_is_submitted_where_it_was_typed_and_leaves_nothing_running(launch, tmp_path):
    done = launch("--run-name", "two words", MAJORITY_VOTE_N="5", OPENCLAW_API_KEY="hush")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cwd={tmp_path}/elsewhere name=two words votes=5" in done.stdout
    assert "raylets=1" in done.stdout, "what is looked for below is there while it runs"
    assert "hush" not in done.stdout + done.stderr
    (file,) = re.findall(r"Ray's dashboard is http://127.0.0.1:\d+, its token: in (\S+)", done.stderr)
    assert f"RAY_AUTH_TOKEN_PATH={file}" in done.stderr
    assert not Path(file).exists(), "it goes with the cluster"
    assert left_running(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_fails_says_so(launch, tmp_path):
    done = launch("--run-name", "fail")
    assert done.returncode != 0
    assert left_running(tmp_path) == []


def test_the_number_of_threads_is_told_once():
    """Ray refuses a job whose run says again what its submission said."""
    told = {"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "3"}}}'}
    assert worker_environment(ClusterConfig(), told | {"OMP_NUM_THREADS": "3"}) == {}
    assert worker_environment(ClusterConfig(), {"OMP_NUM_THREADS": "3"}) == {"env_vars": {"OMP_NUM_THREADS": "3"}}
    assert worker_environment(ClusterConfig(), {}) == {"env_vars": {"OMP_NUM_THREADS": "1"}}
    assert worker_environment(ClusterConfig(train_gpus="0"), {}) == {}


def test_a_mistake_is_answered_before_anything_is_started(launch):
    done = launch("--run-nam", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "python slime/train.py: error: unknown flag --run-nam; did you mean --run-name?\n"


def test_the_configuration_is_shown_without_a_cluster(launch):
    done = launch("--print-config", "--run-name", "x")
    assert done.returncode == 0, done.stderr
    assert 'run_name: "x"' in done.stdout


def test_a_wrong_model_directory_is_answered_before_ray_is_started(launch, tmp_path):
    began = time.monotonic()
    done = launch(MODEL_PATH="/nowhere/qwen3-8b")
    assert time.monotonic() - began < 10  # a fraction of a second on an idle machine; Ray alone takes longer
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python slime/train.py: error: --model-path /nowhere/qwen3-8b: no such directory")
    assert done.stderr.count("\n") == 1


def test_a_wrong_plug_in_is_answered_before_ray_is_started(launch):
    done = launch("--custom-loss-function-path", "los.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "python slime/train.py: error: --custom-loss-function-path los.py: no such file\n"


@pytest.mark.parametrize(("has_token", "words"), [(False, "asks for a token: export RAY_AUTH_MODE=token"), (True, "")])
def test_a_cluster_that_asks_for_a_token_is_given_it_or_the_remedy_is_said(launch, tmp_path, has_token, words):
    class Guarded(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization") or self.headers.get("X-Ray-Authorization"))
            self.send_error(401)

        def log_message(self, *_: object) -> None: ...

    asked: list[str | None] = []
    if has_token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray/auth_token").write_text("drawn-by-ray" * 4)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = launch(DASHBOARD_PORT=str(server.server_port), HOME=str(tmp_path))
        server.shutdown()
    assert done.returncode != 0
    assert words in done.stderr
    assert any("drawn-by-ray" in (header or "") for header in asked) is has_token
