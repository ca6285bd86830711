"""Resolves relative output directories against the directory that the command was typed in.

    ./checkpoints  ─ outside a Ray job ──────────────────────▶ <current directory>/checkpoints
                   ─ --base-dir DIR ─────────────────────────▶ DIR/checkpoints
                   ─ in a job, without it ───────────────────▶ refused: a job has only the package that was sent

Ray runs a job in its own copy of the submitter's folder and deletes the copy with the session, and whatever was written
there. A job that was sent somewhere else on purpose (`env -C DIR`, as launch.sh does) knows its directory. Inputs, such
as plug-in files, come with the package and stay relative to it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from slime.config.sections import OutputConfig
from slime.errors import ConfigError

JOB_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray in every process of a job: how it was submitted, as JSON."""
_PACKAGE = "_ray_pkg_"
"""How the folder begins that Ray unpacks a package into."""
_REMEDY = 'add --base-dir "$PWD" to the command, or set OPENCLAW_RL_BASE_DIR, to say which directory that is'


def anchored(outputs: Mapping[str, Path], base_dir: str, environ: Mapping[str, str], cwd: Path) -> dict[str, Path]:
    """Output directories, absolute.

    Args:
        outputs: what was asked for, by what to call it in a message, e.g. `{"--save-dir": Path("./checkpoints")}`.
        base_dir: of `--base-dir`; empty if nobody said.
        cwd: the current directory.

    Raises:
        ConfigError: the directory that they are relative to is not known, or Ray would delete them.
    """
    is_job = JOB_ENV in environ
    relative = {name: path for name, path in outputs.items() if not path.is_absolute()}
    base = Path(base_dir).expanduser() if base_dir else cwd
    if is_job and relative and not base.is_absolute():
        raise ConfigError(f"--base-dir {base_dir}: in a Ray job it must be an absolute directory")
    if is_job and relative and not base_dir and not _is_chosen(environ, cwd):
        named = ", ".join(f"{name} {path}" for name, path in relative.items())
        raise ConfigError(
            f"{named}: relative to the directory the command was typed in, which a Ray job does not know; {_REMEDY}"
        )
    found = {name: Path(os.path.normpath(cwd / base / path)) for name, path in outputs.items()}
    for name, path in found.items() if is_job else ():
        if _is_packaged(path):
            raise ConfigError(
                f"{name} {path}: in Ray's copy of the submitted folder, which goes with the session; give a "
                "directory of this machine"
            )
    return found


def output_path(name: str, path: Path, output: OutputConfig, environ: Mapping[str, str]) -> Path:
    """One output directory that is no setting of a run, such as `--output-dir`; as `anchored`."""
    return anchored({name: path.expanduser()}, output.base_dir, environ, Path.cwd())[name]


def _is_chosen(environ: Mapping[str, str], cwd: Path) -> bool:
    """Whether somebody sent the job to this directory: it is neither the copy nor wherever the cluster was started."""
    try:
        package = json.loads(environ[JOB_ENV])["runtime_env"]["working_dir"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(package) and not _is_packaged(cwd)


def _is_packaged(path: Path) -> bool:
    return any(part.startswith(_PACKAGE) for part in path.parts)
