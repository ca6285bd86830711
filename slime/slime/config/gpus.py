"""The GPUs of this machine, and whether those that were asked for are among them. Needs no torch.

    nvidia-smi -L ─▶ indices and UUIDs, MIG instances included ─┐
    CUDA_VISIBLE_DEVICES, where it is set ─ leaves of them ─────┴─▶ present
    --train-gpus 0,1 … ─ check_gpus ─▶ nothing, or one line that says what is there

GPUs are named as CUDA_VISIBLE_DEVICES names them: `0`, `GPU-8932f937-…` or a unique beginning of it, `MIG-…`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slime.config.output_paths import JOB_ENV
from slime.errors import ConfigError

_LISTED = re.compile(r"^GPU (\d+):|UUID: ((?:GPU|MIG)-[\w/-]+)", re.MULTILINE)
_DRIVER_DIR = Path("/proc/driver/nvidia/gpus")
_ASK_S = 20.0


def named_gpus(text: str) -> list[str]:
    """`"0, 1"` → `["0", "1"]`."""
    return [gpu.strip() for gpu in text.split(",") if gpu.strip()]


def present_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names by which a process of this environment can have GPUs: `("0", "GPU-89…", "1", "GPU-3f…")`.

    Args:
        environ: its PATH finds `nvidia-smi`; its CUDA_VISIBLE_DEVICES, if set, says which GPUs are left to it. One that
            is empty inside a Ray job is Ray's mark on a process that asked it for none, and leaves all.
    """
    found = _listed(environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or (not visible and JOB_ENV in environ):
        return found
    return tuple(gpu for gpu in named_gpus(visible) if _is_among(gpu, found))


def check_gpus(asked: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise a ConfigError, one line, unless every GPU that is named is on this machine.

    Args:
        asked: GPUs by the flag that names them, e.g. `{"--train-gpus": "0,1,2,3"}`.
    """
    if not any(map(named_gpus, asked.values())):
        return
    present = present_gpus(environ)
    for flag, text in asked.items():
        missing = [gpu for gpu in named_gpus(text) if not _is_among(gpu, present)]
        if missing:
            raise ConfigError(
                f"{flag} {text}: {_what_is_there(present, environ)}; name GPUs that are there, or give --device cpu, "
                "where these numbers only count ranks and engines"
            )


def _what_is_there(present: Sequence[str], environ: Mapping[str, str]) -> str:
    where = "this machine"
    if environ.get("CUDA_VISIBLE_DEVICES") is not None:
        where = f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} on this machine"
    if not present:
        return f"{where} has no GPU"
    indices = [gpu for gpu in present if gpu.isdigit()] or list(present)
    return f"{where} has {len(indices)}: {','.join(indices)}"


def _listed(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Every index and UUID of the machine."""
    program = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    if program is None:  # a container may have the driver and not its tools
        return tuple(str(index) for index, _ in enumerate(_DRIVER_DIR.glob("*")))
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_ASK_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{program} -L does not say which GPUs are here: {error}") from None
    return tuple(index or uuid for index, uuid in _LISTED.findall(listed))


def _is_among(gpu: str, present: Sequence[str]) -> bool:
    """Whether a GPU is one of those; of a UUID its beginning will do."""
    return any(gpu == name or (gpu.startswith(("GPU-", "MIG-")) and name.startswith(gpu)) for name in present)


def compute_device(name: str) -> str:
    """Where to compute: as asked for, e.g. `cuda:1`; `auto` is `cuda` where there is a GPU, else `cpu`."""
    if name != "auto":
        return name
    import torch  # seconds: a server with an engine of its own somewhere else needs to know nothing of it

    return "cuda" if torch.cuda.is_available() else "cpu"
