"""The real SGLang, in an environment of its own (--sglang-python) or in this one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from slime.config.sections import ALL_LINEAR, EngineConfig, LoraConfig
from slime.engines.backends import Backend, Launch, embedded
from slime.errors import ConfigError

_CPU_KV_TOKENS = 32768
"""SGLang sizes its cache by free GPU memory; on a CPU that would be most of the machine."""


def command(launch: Launch) -> list[str]:
    model = launch.model
    # Without --sleep-on-idle an idle scheduler keeps a core busy.
    own = ["--sleep-on-idle", "--skip-server-warmup"]
    if launch.engine.max_context_len:
        own += ["--context-length", str(launch.engine.max_context_len)]
    if launch.is_cpu:
        dtype = "float32" if model.dtype == "auto" else model.dtype
        own += ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
        own += ["--dtype", dtype, "--max-total-tokens", str(_CPU_KV_TOKENS)]
    else:
        num_gpus = len(launch.gpus.split(",")) if launch.gpus else 1
        own += ["--dtype", model.dtype, "--tp", str(num_gpus)]
    python = launch.engine.sglang_python or sys.executable
    return [python, "-m", "sglang.launch_server", *launch.shared, *own]


def environment(launch: Launch) -> dict[str, str]:
    return {**embedded.environment(launch), "SGLANG_USE_CPU_ENGINE": "1"} if launch.is_cpu else {}


def lora_flags(lora: LoraConfig, is_cpu: bool) -> list[str]:
    targets = "all" if lora.lora_target_modules == ALL_LINEAR else lora.lora_target_modules
    flags = ["--enable-lora", "--max-lora-rank", str(lora.lora_rank), "--lora-target-modules"]
    flags += targets.replace(",", " ").split()
    return [*flags, "--lora-backend", "torch_native"] if is_cpu else flags


def check(engine: EngineConfig) -> None:
    """Raise a `ConfigError` where SGLang is not installed."""
    python = engine.sglang_python or sys.executable
    remedy = "see docs/sglang.md, which installs it beside this environment; or give --backend embedded"
    if not engine.sglang_python:
        if importlib.util.find_spec("sglang") is None:
            raise ConfigError(f"--backend sglang: SGLang is not installed for {python}; {remedy}")
        return
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        found = subprocess.run([python, "-c", question], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        raise ConfigError(f"--sglang-python {python}: cannot be run; {remedy}") from None
    if not found:
        raise ConfigError(f"--sglang-python {python}: SGLang is not installed there; {remedy}")


BACKEND = Backend(command, environment, lora_flags, pause_mode="retract", token_from="config", check=check)
