"""The torch backend of `--trainer`: what it builds, and what it checks before a start."""

from __future__ import annotations

from slime.config.sections import Config
from slime.plugins.losses import load_loss
from slime.plugins.settings import plugin_settings
from slime.trainers.build import TrainerBackend
from slime.trainers.policy_hooks import load_policy_loss_hooks
from slime.trainers.ranks import join_ranks
from slime.trainers.torch import eight_bit
from slime.trainers.torch.trainer import TorchTrainer


def build(config: Config, rank: int, world_size: int, address: str) -> TorchTrainer:
    """One rank at step 0, which has met the others.

    Raises:
        PluginError: the configuration names no loss, or one that cannot be loaded.
        WeightsError: the model cannot be loaded.
    """
    if world_size > 1:
        join_ranks(rank, world_size, address)
    loss_fn = load_loss(config.plugin.custom_loss_function_path)
    return TorchTrainer(
        config.model.model_path,
        config.trainer,
        config.loss,
        loss_fn=loss_fn,
        lora=config.lora,
        rank=rank,
        world_size=world_size,
        device=config.model.device,
        dtype=config.model.dtype,
        keep_checkpoints=config.checkpoint.keep_checkpoints,
        settings=plugin_settings(config),
        hooks=load_policy_loss_hooks(config.plugin),
    )


def check(config: Config) -> None:
    """Raise a `ConfigError` for a package that the settings need and that is not installed."""
    if config.trainer.optimizer == "adamw8bit":
        eight_bit.library()


TRAINER = TrainerBackend(build, check)
