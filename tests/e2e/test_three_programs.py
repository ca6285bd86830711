"""serve_model.py, collect_rollouts.py and train_async.py, in three terminals, as they are published."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slime.engines.launch import dying_with_parent, free_port

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def terminal(cwd: Path, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs until the block ends; it must then stop in order."""
    name = str(command[0]).removesuffix(".py")
    line = dying_with_parent([sys.executable, str(ROOT / str(command[0])), *map(str, command[1:])])
    with (cwd / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(line, cwd=cwd, stdout=output, stderr=output)
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (cwd / f"{name}.log").read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(10)


def ask(url: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def until_ready(url: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            ask(f"{url}/readyz")
            return
        time.sleep(0.5)
    raise AssertionError("the server did not become ready")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_said_at_the_first_is_trained_by_the_third_and_served_by_the_first(chat_model: Path, tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    serve = ("serve_model.py", "--model-path", chat_model, "--port", url.rpartition(":")[2])
    collect = ("collect_rollouts.py", "--api-endpoint", url, "--output-dir", "./rollouts", "--session-aware")
    train = ["train_async.py", "--rollout-dir", "./rollouts", "--checkpoint-dir", "./checkpoints"]
    train += ["--method", "binary", "--num-rollout", "1", "--rollout-batch-size", "2", "--run-dir", "./run"]
    with terminal(tmp_path, *serve):
        until_ready(url)
        with terminal(tmp_path, *collect):
            for said in ("thanks, that is right", "no, that is wrong"):
                chat: list[dict[str, Any]] = [{"role": "user", "content": "What is 3 plus 4?"}]
                for following in (said, "bye"):
                    reply = ask(f"{url}/v1/chat/completions", {"model": "tiny", "messages": chat, "max_tokens": 20})
                    chat += [reply["choices"][0]["message"], {"role": "user", "content": following}]
            done = subprocess.run(
                dying_with_parent([sys.executable, str(ROOT / train[0]), *train[1:]]),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        serving = json.loads((tmp_path / "rollouts/serving.json").read_text())
        [engine] = serving["engine_urls"]
        assert ask(f"{engine}/model_info", token=serving["engine_token"])["weight_version"] == "1"
        assert (tmp_path / "checkpoints/checkpoint-1").is_dir()
