"""What is supervised comes back when it dies, and is given up when it refuses or dies without end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from random_model import build_random_model
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.launch import start_engine
from slime.engines.supervisor import MAX_RESTARTS, Supervisor
from slime.errors import EngineKilled, EngineUnavailable


class Fickle:
    """Something to supervise: each start goes as the next entry of a script says."""

    def __init__(self, script: list[Exception | None]) -> None:
        self.script = script
        self.num_starts = 0
        self.died = asyncio.Event()

    async def start(self) -> None:
        self.num_starts += 1
        self.died.clear()
        if (error := self.script.pop(0)) is not None:
            raise error

    async def wait(self) -> str:
        await self.died.wait()
        return "status=-9"


def killed() -> EngineKilled:
    return EngineKilled("the engine was killed by SIGKILL while it was starting")


async def test_what_is_killed_while_it_starts_is_started_again() -> None:
    fickle = Fickle([killed(), killed(), None])
    await asyncio.wait_for(Supervisor("engine", fickle.start, fickle.wait).start(), 5)
    assert fickle.num_starts == 3


async def test_what_refuses_to_start_is_given_up_at_once() -> None:
    fickle = Fickle([EngineUnavailable("it ended with status 2")])
    with pytest.raises(EngineUnavailable, match="status 2"):
        await Supervisor("engine", fickle.start, fickle.wait).start()
    assert fickle.num_starts == 1


async def test_what_dies_again_and_again_is_given_up() -> None:
    fickle = Fickle([None] * 100)
    supervisor = Supervisor("engine 3", fickle.start, fickle.wait)
    await supervisor.start()
    supervising = asyncio.create_task(supervisor.supervise())
    while not supervising.done():
        fickle.died.set()
        await asyncio.sleep(0)
    with pytest.raises(EngineUnavailable, match="engine 3 died 11 times in 600 s: status=-9"):
        supervising.result()
    assert fickle.num_starts == 1 + MAX_RESTARTS


@pytest.mark.slow
async def test_a_kill_while_it_starts_and_a_refusal_are_told_apart(tmp_path: Path) -> None:
    model = ModelConfig(model_path=str(build_random_model(tmp_path / "model")), device="cpu")
    log_path = tmp_path / "engine.log"
    starting = asyncio.create_task(start_engine(model, EngineConfig(), log_path=log_path))
    deadline = time.monotonic() + 10
    while not (pids := engines_of(os.getpid())):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(EngineKilled, match="SIGKILL"):
        await asyncio.wait_for(starting, 20)
    with pytest.raises(EngineUnavailable, match="status 2") as refusal:
        await start_engine(model, EngineConfig(), log_path=log_path, extra_args=("--no-such-flag",))
    assert not isinstance(refusal.value, EngineKilled)


def engines_of(pid: int) -> list[int]:
    """The engine processes that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"slime.engines" in Path(f"/proc/{child}/cmdline").read_bytes()]
