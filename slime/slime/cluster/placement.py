"""Which GPUs an engine or a trainer rank may see.

TRAIN_GPUS=0,1,2,3  --num-train-ranks 4   ─▶  one each
ROLLOUT_GPUS=4,5,6,7  --num-engines 2     ─▶  4,5 and 6,7 (tensor parallel)
none                                      ─▶  the CPU
"""

from __future__ import annotations

from dataclasses import dataclass

from slime.config import ClusterConfig
from slime.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """Devices as CUDA_VISIBLE_DEVICES spells them; an empty text is the CPU.

    >>> Placement(engines=("4,5", "6,7"), ranks=("0", "1"))
    """

    engines: tuple[str, ...]
    ranks: tuple[str, ...]


def place(cluster: ClusterConfig) -> Placement:
    """Deal the GPUs out evenly. Raises ConfigError where they do not go round or are asked for twice."""
    train, rollout = _gpus("--train-gpus", cluster.train_gpus), _gpus("--rollout-gpus", cluster.rollout_gpus)
    return Placement(
        engines=_deal("--rollout-gpus", rollout, cluster.num_engines, "--num-engines"),
        ranks=_deal("--train-gpus", train, cluster.num_train_ranks, "--num-train-ranks"),
    )


def _gpus(flag: str, text: str) -> list[str]:
    gpus = [gpu.strip() for gpu in text.split(",") if gpu.strip()]
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
