"""Resolves a user's checkpoint path to a model directory that an engine can load.

model directory ───────────────────────────▶ itself
checkpoint with weights/ ──────────────────▶ those
adapter, or a checkpoint whose weights are one ─ base model ─▶ merged into a whole model
"""

from __future__ import annotations

from pathlib import Path

from slime.errors import ConfigError
from slime.weights.adapters import is_adapter, merge_adapter


def weights_dir(given: str | Path) -> Path:
    """The model or adapter directory at a path: itself, or a checkpoint's `weights`.

    Raises:
        ConfigError: neither contains one.
    """
    path = Path(given)
    for candidate in (path, path / "weights"):
        if (candidate / "config.json").exists() or is_adapter(candidate):
            return candidate.resolve()
    raise ConfigError(f"{given} is not a model: no config.json and no adapter, there or in its weights/")


def whole_model(given: str | Path, base_dir: Path | None, merged_dir: Path) -> Path:
    """The model directory at a path; an adapter is merged with its base into `merged_dir`.

    Raises:
        ConfigError: there is no model, or an adapter and no base.
        WeightsError: the adapter belongs to another base.
    """
    found = weights_dir(given)
    if not is_adapter(found):
        return found
    if base_dir is None:
        raise ConfigError(f"{given} is an adapter: name its base model with --base-model")
    merge_adapter(base_dir, found, merged_dir)
    return merged_dir
