"""Runs slime/train.py as a supervised subprocess, used over HTTP and observed through its files.

TrainingRun ─▶ python slime/train.py … ─▶ http://127.0.0.1:PORT/v1, run_dir/metrics.jsonl, checkpoints
   killed? ─▶ restarted with the same flags: it resumes from its newest checkpoint
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from slime.engines.launch import dying_with_parent, free_port
from slime.errors import TrainerError
from slime.monitor import read_metrics

log = logging.getLogger(__name__)

TRAIN = Path(__file__).resolve().parents[1] / "slime" / "train.py"
MAX_RESTARTS = 5
_START_S = 180.0
_STOP_S = 60.0


class TrainingRun:
    """Runs `slime/train.py` on a model in its own directory, as an async context.

    >>> async with TrainingRun(model_dir, run_dir, flags=["--num-rollout", "20"]) as run:
    ...     client = AsyncOpenAI(base_url=run.base_url, api_key="local")

    Args:
        flags: further flags of `slime/train.py`.
    """

    def __init__(self, model_dir: Path, run_dir: Path, flags: list[str]) -> None:
        self.run_dir = run_dir
        self.port = _remembered_port(run_dir)
        self.num_restarts = 0
        self._command = [
            *(sys.executable, str(TRAIN), "--model-path", str(model_dir), "--port", str(self.port)),
            *("--run-dir", str(run_dir), "--rl-buffer-dir", str(self.buffer_dir)),
            *("--save-dir", str(run_dir / "checkpoints")),
            *flags,
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_stopping = False

    @property
    def buffer_dir(self) -> Path:
        """The directory of the captured turns."""
        return self.run_dir / "turns"

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """Process id of the driver; killing it is safe."""
        assert self._process is not None
        return self._process.pid

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per update, in order."""
        return read_metrics(self.run_dir)

    @property
    def step(self) -> int:
        """Updates made so far."""
        entries = self.metrics()
        return int(entries[-1]["step"]) if entries else 0

    async def __aenter__(self) -> Self:
        await self._start()
        self._watch = asyncio.create_task(self._restart_when_killed())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopping = True
        if self._watch is not None:
            self._watch.cancel()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def check(self) -> None:
        """Raise the error that ended the run, if any."""
        if self._watch is not None and self._watch.done():
            self._watch.result()

    async def _start(self) -> None:
        log_path = self.run_dir / "logs" / "driver.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_parent(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        await self._until_ready(log_path)

    async def _until_ready(self, log_path: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        url = f"http://127.0.0.1:{self.port}/readyz"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while time.monotonic() < deadline and self._process.returncode is None:
                try:
                    async with session.get(url) as answer:
                        if answer.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(0.2)
        raise TrainerError(f"the training run did not start; {log_path} ends:\n{last_lines(log_path)}")

    async def _restart_when_killed(self) -> None:
        while True:
            assert self._process is not None
            status = await self._process.wait()
            if self._is_stopping:
                return
            if status >= 0 or self.num_restarts >= MAX_RESTARTS:
                raise TrainerError(f"the training run ended with status {status}; see {self.run_dir / 'logs'}")
            self.num_restarts += 1
            log.warning("training run killed signal=%d, restarting", -status)
            await self._start()


def last_lines(file: Path, num_lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(file.read_text(errors="replace").splitlines()[-num_lines:])


def _remembered_port(run_dir: Path) -> int:
    """The port of this run, stable across restarts so that its users can reconnect."""
    file = run_dir / "port.json"
    if file.exists():
        return int(json.loads(file.read_text(encoding="utf-8")))
    run_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    file.write_text(json.dumps(port), encoding="utf-8")
    return port
