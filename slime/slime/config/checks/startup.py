"""What settings need on this machine, checked before a program starts: directories, packages, SGLang.

    Config ─ contradictions.check_settings ─▶ model, judge, teacher, checkpoint directories ─▶ packages, SGLang

Everything here takes a fraction of a second. What takes torch (plug-ins, signatures) is checked by `slime.preflight`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from slime.config.checks import conditions
from slime.config.checks.contradictions import check_settings
from slime.config.model_dir import check_model_dir, parameter_bytes, writes_function_tags
from slime.config.sections import Config, JudgeConfig
from slime.errors import ConfigError

_BYTES_TRAINED = 16
"""Of one parameter that is trained: weight, gradient and two moments, 4 bytes each."""
_BYTES_READ = 2
"""Of one parameter that is only read, in bf16: the reference, the base of an adapter."""
_LARGE = 2e9
"""Parameters from which on memory decides whether a run can start at all."""


def check_startup(config: Config) -> None:
    """Raises ConfigError, in one line, where a run given these settings could not start or contradicts itself."""
    check_model_dir(config.model.model_path)
    check_settings(config)
    if conditions.ASKED.holds(config) and not config.judge.judge_url:
        _check_judge(config.judge)
    if conditions.TAUGHT.holds(config) and config.teacher.teacher_model_path and not config.teacher.teacher_url:
        check_model_dir(config.teacher.teacher_model_path, "--teacher-model-path")
    _check_resume(config)
    for package, is_asked_for, flag in (
        ("wandb", config.monitor.use_wandb, "--use-wandb"),
        ("peft", config.lora.use_lora, "--use-lora"),
    ):
        if is_asked_for and importlib.util.find_spec(package) is None:
            raise ConfigError(f"{flag} needs the package {package}, which is not installed: pip install {package}")


def warnings(config: Config) -> Iterator[str]:
    """What a run given these settings can do and its writer may regret; one line each. The model directory is good."""
    model_dir = Path(config.model.model_path).expanduser()
    if writes_function_tags(model_dir):
        yield (
            f"--model-path {config.model.model_path}: its template writes tool calls as <function=…>, which are not "
            "read yet: an agent gets them as text; Qwen3's are read"
        )
    count = parameter_bytes(model_dir) / 2
    if count > _LARGE and config.cluster.train_gpus and not config.lora.use_lora:
        read = _BYTES_READ if config.loss.kl_loss_coef or config.loss.kl_coef else 0
        yield (
            f"all {count / 1e9:.1f} G weights are trained, and each rank holds all: about "
            f"{count * (_BYTES_TRAINED + read) / 1e9:.0f} GB on every training GPU beside activations; "
            f"--use-lora takes about {count * _BYTES_READ / 1e9:.0f} GB, --offload-optimizer-state leaves out "
            f"{count * 8 / 1e9:.0f} GB"
        )


def _check_judge(judge: JudgeConfig) -> None:
    path = judge.judge_model_path
    if not path:
        if judge.judge_model:
            raise ConfigError(
                f"--judge-model {judge.judge_model} is served by somebody: give --judge-url https://…/v1 and "
                "JUDGE_API_KEY, which sends them what people said; or --judge-model-path DIR, which keeps it here"
            )
        return
    if "/" not in path and not Path(path).expanduser().exists():
        raise ConfigError(
            f"--judge-model-path {path}: no such directory; a model behind an API is "
            f"--judge-url URL --judge-model {path}"
        )
    check_model_dir(path, "--judge-model-path")


def _check_resume(config: Config) -> None:
    """A checkpoint that is named is there; which of them is whole is seen when it is read."""
    wanted = config.checkpoint.resume_from_checkpoint
    if wanted in ("auto", "none"):
        return
    path = Path(wanted).expanduser()
    where = f"--resume-from-checkpoint {wanted}"
    if not path.is_dir():
        there = sorted(str(found) for found in path.parent.glob("checkpoint-*")) if path.parent.is_dir() else []
        raise ConfigError(f"{where}: no such checkpoint" + (f"; there are {', '.join(there[:5])}" if there else ""))
    if config.lora.adapter_per == "run" and not (path / "state.json").is_file():
        raise ConfigError(f"{where}: no state.json in it; name a directory checkpoint-N that a run wrote")
