"""Engine processes: started with the flags their kind needs, watched until they are ready, gone when their owner is.

    start_engine ─▶ die_with_parent ─▶ the command line of its backend (engines/backends)
                 ─▶ wait until /health_generate answers, the process dies, or the deadline passes ─▶ EngineProcess

The process belongs to the thread that started it: when that ends, the kernel kills it. Its output goes to a log file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slime.config.gpus import compute_device
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines import die_with_parent
from slime.engines.backends import Launch, backend_named
from slime.engines.client import HttpEngine
from slime.engines.dialect.versions import version_to_wire
from slime.errors import EngineError, EngineKilled, EngineUnavailable
from slime.private_files import new_secret, open_private, write_private

_HOST = "127.0.0.1"
_POLL_S = 0.2


@dataclass(frozen=True)
class EngineProcess:
    """A running engine of ours.

    >>> process = await start_engine(model_config, engine_config, log_path=Path("logs/engine.log"))
    >>> engine = HttpEngine(process.url)
    """

    url: str
    process: asyncio.subprocess.Process
    log_path: Path

    async def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end, insist after `grace_s`; its children end with it."""
        await end_process(self.process, grace_s)


async def start_engine(
    model: ModelConfig,
    engine: EngineConfig,
    *,
    log_path: Path,
    backend: str = "",
    port: int = 0,
    gpus: str = "",
    environment: Mapping[str, str] | None = None,
    extra_args: tuple[str, ...] = (),
) -> EngineProcess:
    """Start an engine and return when it generates.

    With `engine.engine_token` it listens behind that token, which neither `ps` nor the environment shows.

    Args:
        backend: another one than `engine.backend`.
        port: 0 = a free one.
        gpus: the devices it may see, as in CUDA_VISIBLE_DEVICES; empty = all there are.
        environment: variables set on top of this process's own.
        extra_args: further flags of that engine.

    Raises:
        EngineKilled: a signal ended it before it was ready.
        EngineUnavailable: it ended by itself, or was not ready in `engine.engine_start_timeout_s`; with its log's end.
    """
    port = port or free_port()
    chosen = backend_named(backend or engine.backend)
    launch = prepare(model, engine, port=port, gpus=gpus)
    token_file = log_path.with_suffix(f".{port}.yaml")
    reads_token = bool(engine.engine_token) and chosen.token_from == "stdin"
    if reads_token:
        extra_args = (*extra_args, "--token-from-stdin")
    elif engine.engine_token:
        write_private(token_file, json.dumps({"api-key": engine.engine_token}))
        extra_args = (*extra_args, "--config", str(token_file))
    visible = {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}
    process = await start_process(
        [*chosen.command(launch), *extra_args],
        log_path,
        {**chosen.environment(launch), **visible, **(environment or {})},
        has_stdin=reads_token,
    )
    if process.stdin is not None:
        process.stdin.write(f"{engine.engine_token}\n".encode())
        process.stdin.close()
    started = EngineProcess(f"http://{_HOST}:{port}", process, log_path)
    try:
        await _wait_until_ready(started, engine)
    except BaseException:
        await started.stop(grace_s=1.0)
        raise
    finally:
        token_file.unlink(missing_ok=True)
    return started


async def _wait_until_ready(started: EngineProcess, engine: EngineConfig) -> None:
    timeout_s = engine.engine_start_timeout_s
    deadline = time.monotonic() + timeout_s
    reason = "it never answered"
    async with HttpEngine(started.url, token=engine.engine_token) as client:
        while time.monotonic() < deadline and started.process.returncode is None:
            try:
                await client.health(timeout_s=min(30.0, max(1.0, deadline - time.monotonic())))
                return
            except EngineError as error:
                reason = str(error)
                await asyncio.sleep(_POLL_S)
    status = started.process.returncode
    if status is not None and status < 0:
        raise EngineKilled(f"the engine was killed by {signal.Signals(-status).name} while it was starting")
    if status is not None:
        reason = f"it ended with status {status}"
    raise EngineUnavailable(
        f"the engine did not become ready in {timeout_s:g} s: {reason}; log {started.log_path} ends:\n"
        + tail(started.log_path)
    )


def prepare(model: ModelConfig, engine: EngineConfig, *, port: int, gpus: str = "") -> Launch:
    """What a backend makes a command line of; the engine serves under the version that the weights' manifest names."""
    from slime.weights.directories import MANIFEST_FILE, read_manifest  # brings torch, which takes seconds

    model_dir = Path(model.model_path)
    version = read_manifest(model_dir).version if (model_dir / MANIFEST_FILE).exists() else 0
    shared = ["--host", _HOST, "--port", str(port), "--model-path", model.model_path]
    shared += ["--weight-version", version_to_wire(version), "--incremental-streaming-output"]
    shared += ["--max-running-requests", str(engine.max_running_requests)]
    shared += ["--max-queued-requests", str(engine.max_queued_requests)]
    return Launch(model, engine, tuple(shared), gpus, compute_device(model.device) == "cpu")


def with_token(engine: EngineConfig) -> EngineConfig:
    """The settings of engines that are started, with a token drawn where none is set."""
    return engine if engine.engine_token else replace(engine, engine_token=new_secret())


async def start_process(
    command: Sequence[str], log_path: Path, environment: Mapping[str, str], *, has_stdin: bool = False
) -> asyncio.subprocess.Process:
    """A process that ends with the thread that starts it, its output in a log.

    Args:
        environment: variables set on top of this process's own.
    """
    with open_private(log_path) as log:
        return await asyncio.create_subprocess_exec(
            *dying_with_parent(command),
            stdin=asyncio.subprocess.PIPE if has_stdin else asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )


async def end_process(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """SIGTERM, and SIGKILL to its process group after `grace_s`."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_s)
    except TimeoutError:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):  # what is left of its process group
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command of a process that the kernel ends with the thread that starts it."""
    return [sys.executable, "-S", "-E", die_with_parent.__file__, str(os.getpid()), *command]


def free_port() -> int:
    """A port of the loopback that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def tail(path: Path, num_lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:]) if path.exists() else "there is none"
