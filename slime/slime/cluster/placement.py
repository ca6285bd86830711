"""GPU placement: which devices each engine and each trainer rank may see.

TRAIN_GPUS=0,1,2,3  --num-train-ranks 4   ─▶  one each
ROLLOUT_GPUS=4,5,6,7  --num-engines 2     ─▶  4,5 and 6,7 (tensor parallel)
JUDGE_GPUS=6  TEACHER_GPUS=7              ─▶  engines of a judge and a teacher; else the last of ROLLOUT_GPUS
none, or --device cpu                     ─▶  the CPU

A judge's and a teacher's engine may share a GPU with an engine of the policy, never with a trainer rank: a rank fills
its GPU.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from slime.config.gpus import named_gpus
from slime.config.sections import ClusterConfig, Config
from slime.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Placement:
    """Devices as CUDA_VISIBLE_DEVICES spells them; an empty text is the CPU.

    >>> Placement(engines=("4,5", "6,7"), ranks=("0", "1"), judge="7", teacher="7")

    Attributes:
        judge, teacher: of an engine of their own, where one is started.
    """

    engines: tuple[str, ...]
    ranks: tuple[str, ...]
    judge: str = ""
    teacher: str = ""


def on_cpu(config: Config) -> Config:
    """With `--device cpu` the configuration without GPUs, which have counted ranks and engines by then."""
    if config.model.device != "cpu":
        return config
    cluster = replace(config.cluster, train_gpus="", rollout_gpus="", judge_gpus="", teacher_gpus="")
    return replace(config, cluster=cluster)


def own_teacher(config: Config) -> str:
    """The model directory of the engine that is started for a teacher; empty: none is."""
    if config.teacher.teacher_url:
        return ""
    has_base = config.lora.use_lora and config.lora.lora_publish == "adapter"
    is_frozen = config.teacher.teacher == "frozen" and not has_base
    return config.teacher.teacher_model_path or (config.model.model_path if is_frozen else "")


def place(cluster: ClusterConfig, *, has_judge: bool = False, has_teacher: bool = False) -> Placement:
    """Deal the GPUs out evenly.

    Args:
        has_judge, has_teacher: whether an engine is started for a judge, for a teacher.

    Raises:
        ConfigError: GPUs do not go round, are asked for twice, or are a trainer's already.
    """
    train, rollout = _gpus("--train-gpus", cluster.train_gpus), _gpus("--rollout-gpus", cluster.rollout_gpus)
    return Placement(
        engines=_deal("--rollout-gpus", rollout, cluster.num_engines, "--num-engines"),
        ranks=_deal("--train-gpus", train, cluster.num_train_ranks, "--num-train-ranks"),
        judge=_beside("judge", cluster.judge_gpus, rollout, train, is_started=has_judge),
        teacher=_beside("teacher", cluster.teacher_gpus, rollout, train, is_started=has_teacher),
    )


def _beside(role: str, text: str, rollout: list[str], train: list[str], *, is_started: bool) -> str:
    """The GPUs of an engine beside the policy's own."""
    flag = f"--{role}-gpus"
    own = _gpus(flag, text)
    if own and not is_started:
        log.warning("%s %s has no effect: no engine is started for a %s; see --%s-model-path", flag, text, role, role)
        return ""
    if taken := [gpu for gpu in own if gpu in train]:
        raise ConfigError(f"{flag} {text}: GPU {taken[0]} is a trainer's, which fills it; name another")
    if own or not is_started or not rollout:
        return ",".join(own)
    free = [gpu for gpu in rollout if gpu not in train]
    if not free:
        raise ConfigError(
            f"the {role}'s engine has no GPU: all of --rollout-gpus are a trainer's, which fills them; give {flag}"
        )
    log.warning("the %s's engine shares GPU %s with an engine of the policy; %s gives it its own", role, free[-1], flag)
    return free[-1]


def _gpus(flag: str, text: str) -> list[str]:
    gpus = named_gpus(text)
    if len(set(gpus)) != len(gpus):
        raise ConfigError(f"{flag} {text}: a GPU is named twice")
    return gpus


def _deal(flag: str, gpus: list[str], num_parts: int, parts_flag: str) -> tuple[str, ...]:
    if not gpus:
        return ("",) * num_parts
    if len(gpus) % num_parts:
        raise ConfigError(f"{flag} names {len(gpus)} GPUs, which {parts_flag} {num_parts} does not divide")
    share = len(gpus) // num_parts
    return tuple(",".join(gpus[start : start + share]) for start in range(0, len(gpus), share))
