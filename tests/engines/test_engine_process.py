"""Engine processes: ready when they are handed over, and gone when their owner is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from random_model import build_random_model
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.backends import embedded, sglang
from slime.engines.client import HttpEngine
from slime.engines.launch import prepare, start_engine
from slime.errors import EngineUnavailable
from slime.weights.directories import write_manifest

OWNER = """
import asyncio, sys
from pathlib import Path
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.launch import start_engine

async def own():
    model = ModelConfig(model_path=sys.argv[1], device="cpu")
    engine = await start_engine(model, EngineConfig(), backend="scripted", log_path=Path(sys.argv[2]))
    print(engine.process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(own())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(model_path=str(build_random_model(tmp_path_factory.mktemp("model"))), device="cpu")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _wait_gone(pid: int, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while _is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


async def test_an_engine_is_ready_when_it_is_handed_over_and_gone_after_stop(model: ModelConfig, tmp_path: Path):
    process = await start_engine(model, EngineConfig(), backend="scripted", log_path=tmp_path / "logs" / "engine.log")
    async with HttpEngine(process.url) as engine:
        assert await engine.version() == 0
    assert _is_running(process.process.pid)
    await process.stop()
    assert process.process.returncode is not None
    assert not _is_running(process.process.pid)


def test_an_engine_does_not_outlive_an_owner_that_is_killed(model: ModelConfig, tmp_path: Path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, model.model_path, str(tmp_path / "engine.log")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert _is_running(pid)
        owner.send_signal(signal.SIGKILL)
        assert _wait_gone(pid)
    finally:
        owner.kill()
        owner.wait()


async def test_an_engine_that_dies_shows_the_end_of_its_log(model: ModelConfig, tmp_path: Path):
    started = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"(?s)ended with status 2.*--no-such-flag"):
        await start_engine(
            model,
            EngineConfig(),
            backend="scripted",
            log_path=tmp_path / "engine.log",
            extra_args=("--no-such-flag",),
        )
    assert time.monotonic() - started < 20


async def test_an_engine_that_never_answers_is_stopped_at_the_deadline(model: ModelConfig, tmp_path: Path):
    before = set(asyncio.all_tasks())
    with pytest.raises(EngineUnavailable, match="did not become ready in 1 s"):
        await start_engine(
            model,
            EngineConfig(engine_start_timeout_s=1.0),
            backend="scripted",
            log_path=tmp_path / "engine.log",
            extra_args=("--host", "127.0.0.2"),  # not where it is looked for
        )
    assert set(asyncio.all_tasks()) <= before


def test_the_manifest_names_the_version_that_is_served(model: ModelConfig, tmp_path: Path):
    directory = build_random_model(tmp_path / "published")
    write_manifest(directory, 12)
    published = ModelConfig(model_path=str(directory), device="cpu")
    for config, version in ((model, "default"), (published, "12")):
        command = embedded.command(prepare(config, EngineConfig(), port=1))
        assert command[command.index("--weight-version") + 1] == version


def test_sglang_gets_what_it_needs_on_each_device(model: ModelConfig):
    config = EngineConfig(sglang_python="/elsewhere/bin/python", max_context_len=4096)
    on_cpu = sglang.command(prepare(model, config, port=1))
    assert on_cpu[:3] == ["/elsewhere/bin/python", "-m", "sglang.launch_server"]
    assert on_cpu[on_cpu.index("--attention-backend") + 1] == "torch_native"
    assert on_cpu[on_cpu.index("--context-length") + 1] == "4096"
    cuda = ModelConfig(model_path=model.model_path, device="cuda")
    on_gpu = sglang.command(prepare(cuda, config, port=1, gpus="2,3"))
    assert on_gpu[on_gpu.index("--tp") + 1] == "2"
    assert "--attention-backend" not in on_gpu
