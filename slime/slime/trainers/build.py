"""Trainer backends: `--trainer` names one of ours, or a plug-in file.

    --trainer torch       ─▶ TRAINERS ─┐
    --trainer mine.py     ─▶ plug-in  ─┴▶ TrainerBackend ─ check ─▶ before the start, in the driver
                                                         ─ build ─▶ a `protocols.Trainer` in every rank

A backend is imported when it is chosen. A new one of ours is a folder with a `TRAINER` in it and a line in `TRAINERS`;
one of yours is a file with a `TRAINER` in it, which stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slime.config.sections import Config
from slime.errors import ConfigError, nearest
from slime.plugins.loading import load_object
from slime.protocols import Trainer
from slime.trainers.per_user import AdapterTrainer, UserTrainers

TRAINERS = {"torch": "slime.trainers.torch.backend:TRAINER"}
"""Ours, by the name that `--trainer` takes."""

_FLAG = "--trainer"


@dataclass(frozen=True)
class TrainerBackend:
    """One kind of trainer.

    Attributes:
        build: (config, rank, world_size, address) → the trainer of one rank at step 0. The ranks of a run meet at
            `address`, e.g. `tcp://127.0.0.1:29500`.
        check: raises a `ConfigError` for settings that it cannot train with; nothing is started yet.

    >>> TRAINER = TrainerBackend(build=lambda config, rank, world_size, address: MyTrainer(config.model.model_path))
    """

    build: Callable[[Config, int, int, str], Trainer]
    check: Callable[[Config], None] = lambda config: None


def check_trainer(config: Config) -> None:
    """Find out before the start whether the trainer can be had.

    Raises:
        ConfigError: there is none of that name, or it cannot train with these settings.
        PluginError: the file that is named holds none.
    """
    _backend(config).check(config)


def build_trainer(config: Config, *, rank: int = 0, world_size: int = 1, address: str = "") -> Trainer:
    """One rank of the trainer that the configuration names, at step 0; with `--adapter-per user`, of every user.

    Args:
        address: where the ranks meet, the same for all; unused by a single one.

    Raises:
        ConfigError: the trainer does not exist, or cannot hold several users' adapters.
    """
    trainer = _backend(config).build(config, rank, world_size, address)
    if not config.lora.use_lora or config.lora.adapter_per == "run":
        return trainer
    if not isinstance(trainer, AdapterTrainer):
        raise ConfigError(f"{_FLAG} {config.trainer.trainer} trains one adapter for all: leave out --adapter-per user")
    return UserTrainers(trainer)


def _backend(config: Config) -> TrainerBackend:
    name = config.trainer.trainer
    if name not in TRAINERS and name.isidentifier():
        known = ", ".join(TRAINERS)
        raise ConfigError(
            f"{_FLAG} {name}: no such trainer{nearest(name, TRAINERS)}; there is {known}, or a file of yours: mine.py"
        )
    found = load_object(TRAINERS.get(name, name), ["TRAINER"], flag=_FLAG)
    if not isinstance(found, TrainerBackend):
        raise ConfigError(f"{_FLAG} {name}: TRAINER is a {type(found).__name__}; make it a TrainerBackend(build)")
    return found
