"""Engine processes: started with the flags their kind needs, watched until they are ready, gone when their owner is.

    start_engine ─▶ leash ─▶ python -m slime.engines.embedded | sglang.launch_server | slime.engines.scripted
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
from typing import Literal

from slime.config.sections import EngineConfig, LoraConfig, ModelConfig
from slime.engines import leash
from slime.engines.client import HttpEngine
from slime.engines.dialect import adapter_to_wire, version_to_wire
from slime.errors import EngineError, EngineKilled, EngineUnavailable
from slime.private_files import new_secret, open_private, write_private

Backend = Literal["embedded", "sglang", "scripted"]

ALL_LINEAR = "all-linear"
_CPU_KV_TOKENS = 32768  # SGLang sizes its cache by free GPU memory; on a CPU that would be most of the machine
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

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def wait(self) -> int:
        """The exit status, once there is one."""
        return await self.process.wait()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end, insist after `grace_s`; its children end with it."""
        if not self.is_alive:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):  # what is left of its process group
                os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


async def start_engine(
    model: ModelConfig,
    engine: EngineConfig,
    *,
    log_path: Path,
    backend: Backend | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    gpus: str = "",
    environment: Mapping[str, str] | None = None,
    extra_args: tuple[str, ...] = (),
) -> EngineProcess:
    """Start an engine and return when it generates.

    With `engine.engine_token` it listens behind that token, which neither `ps` nor the environment shows: our engines
    read it from standard input, SGLang from a file that is gone once it is up.

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
    port = port or free_port(host)
    kind = backend or engine.backend
    command = engine_command(kind, model, engine, host=host, port=port, gpus=gpus)
    token_file = log_path.with_suffix(f".{port}.yaml") if kind == "sglang" and engine.engine_token else None
    reads_token = bool(engine.engine_token) and token_file is None
    if token_file is not None:
        write_private(token_file, json.dumps({"api-key": engine.engine_token}))
        extra_args = (*extra_args, "--config", str(token_file))
    elif reads_token:
        extra_args = (*extra_args, "--token-from-stdin")
    with open_private(log_path) as log:
        process = await asyncio.create_subprocess_exec(
            *leashed(command),
            *extra_args,
            stdin=asyncio.subprocess.PIPE if reads_token else asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **_environment(kind, is_cpu=_is_cpu(model), gpus=gpus), **(environment or {})},
        )
    if process.stdin is not None:
        process.stdin.write(f"{engine.engine_token}\n".encode())
        process.stdin.close()
    started = EngineProcess(f"http://{host}:{port}", process, log_path)
    try:
        await _wait_until_ready(started, engine)
    except BaseException:
        await started.stop(grace_s=1.0)
        raise
    finally:
        if token_file is not None:
            token_file.unlink(missing_ok=True)
    return started


async def _wait_until_ready(started: EngineProcess, engine: EngineConfig) -> None:
    timeout_s = engine.engine_start_timeout_s
    deadline = time.monotonic() + timeout_s
    reason = "it never answered"
    async with HttpEngine(started.url, token=engine.engine_token) as client:
        while time.monotonic() < deadline and started.is_alive:
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
        + _tail(started.log_path)
    )


def engine_command(
    backend: Backend,
    model: ModelConfig,
    engine: EngineConfig,
    *,
    host: str,
    port: int,
    gpus: str = "",
) -> list[str]:
    """The command line of an engine; it serves under the version that the weights' manifest names."""
    from slime.weights import MANIFEST_FILE, read_manifest  # brings torch, which takes seconds

    model_dir = Path(model.model_path)
    version = read_manifest(model_dir).version if (model_dir / MANIFEST_FILE).exists() else 0
    shared = ["--host", host, "--port", str(port), "--model-path", model.model_path]
    shared += ["--weight-version", version_to_wire(version), "--incremental-streaming-output"]
    shared += ["--max-running-requests", str(engine.max_running_requests)]
    shared += ["--max-queued-requests", str(engine.max_queued_requests)]
    if backend == "scripted":
        return [sys.executable, "-m", "slime.engines.scripted", *shared]
    if engine.max_context_len:
        shared += ["--context-length", str(engine.max_context_len)]
    if backend == "embedded":
        return [
            sys.executable,
            "-m",
            "slime.engines.embedded",
            *shared,
            "--device",
            model.device,
            "--dtype",
            model.dtype,
        ]
    return [engine.sglang_python or sys.executable, "-m", "sglang.launch_server", *shared, *_sglang_flags(model, gpus)]


def _sglang_flags(model: ModelConfig, gpus: str) -> list[str]:
    # Without --sleep-on-idle an idle scheduler keeps a core busy.
    flags = ["--sleep-on-idle", "--skip-server-warmup"]
    if _is_cpu(model):
        dtype = "float32" if model.dtype == "auto" else model.dtype
        flags += ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
        return [*flags, "--dtype", dtype, "--max-total-tokens", str(_CPU_KV_TOKENS)]
    num_gpus = len(gpus.split(",")) if gpus else 1
    return [*flags, "--dtype", model.dtype, "--tp", str(num_gpus)]


def with_token(engine: EngineConfig) -> EngineConfig:
    """The settings of engines that are started, with a token drawn where none is set."""
    return engine if engine.engine_token else replace(engine, engine_token=new_secret())


def adapter_flags(
    model: ModelConfig, engine: EngineConfig, lora: LoraConfig, adapters: Mapping[str, tuple[Path, int]]
) -> tuple[str, ...]:
    """Further flags of an engine that serves adapters.

    Args:
        adapters: directory and version by name: what it starts with.
    """
    if not lora.use_lora or lora.lora_publish == "merged":
        return ()
    flags: list[str] = []
    if engine.backend == "sglang":
        targets = "all" if lora.lora_target_modules == ALL_LINEAR else lora.lora_target_modules
        flags += ["--enable-lora", "--max-lora-rank", str(lora.lora_rank), "--lora-target-modules"]
        flags += targets.replace(",", " ").split()
        flags += ["--lora-backend", "torch_native"] if _is_cpu(model) else []
    if adapters:
        named = [f"{adapter_to_wire(name, version)}={path}" for name, (path, version) in adapters.items()]
        flags += ["--lora-paths", *named]
    return tuple(flags)


def _environment(backend: Backend, *, is_cpu: bool, gpus: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    if is_cpu and backend != "scripted":
        # Several processes share the cores; with a thread a core in each they mostly wait for each other.
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if is_cpu and backend == "sglang":
        variables["SGLANG_USE_CPU_ENGINE"] = "1"
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = gpus
    return variables


def _is_cpu(model: ModelConfig) -> bool:
    if model.device != "auto":
        return model.device == "cpu"
    import torch  # seconds: a server with an engine of its own somewhere else needs to know nothing of it

    return not torch.cuda.is_available()


def leashed(command: Sequence[str]) -> list[str]:
    """The command of a process that dies with the thread that starts it."""
    return [sys.executable, "-S", "-E", leash.__file__, str(os.getpid()), *command]


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(path: Path, num_lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])
