"""The settings as a plug-in sees them: one flat mapping, ours and the published names side by side, no secrets."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

_PUBLISHED = {
    "clip_range": "eps_clip",
    "clip_ratio": "eps_clip",
    "kl_coeff": "kl_loss_coef",
    "binary_weight": "w_rl",
    "opd_weight": "w_opd",
    "checkpoint_path": "prm_model_path",
}
"""What published plug-in files call a setting → what we call it."""


def plugin_settings(config: Any) -> MappingProxyType[str, Any]:
    """Every setting in a configuration tree, or in one section of it, by its plain name.

    >>> plugin_settings(LossConfig(eps_clip=0.1))["clip_range"]
    0.1
    """
    settings: dict[str, Any] = {}
    for leaf in dataclasses.fields(config):
        value = getattr(config, leaf.name)
        if dataclasses.is_dataclass(value):
            settings |= plugin_settings(value)
        elif not leaf.metadata.get("is_secret"):
            settings[leaf.name] = value
    settings |= {name: settings[ours] for name, ours in _PUBLISHED.items() if ours in settings}
    return MappingProxyType(settings)
