"""Makes a process understand code that was written for slime; nothing below this package knows of it.

    install() ─▶ slime's module names can be imported          compat/imports.py
              ─▶ a reward may ask for `sample`                 compat/conversion.py
              ─▶ a loss may ask for `args`, `batch`, `logits`  compat/losses.py

The programs that load plug-ins call it: the driver in `slime.preflight`, each trainer rank in `cluster/learner.py`.
"""

from __future__ import annotations

from slime.compat.conversion import sample_of_turn
from slime.compat.imports import answer_to_slime_names
from slime.compat.losses import arguments, batch, logits
from slime.plugins.rewards import OF_TURN
from slime.trainers.loss_values import OF_BATCH


def install() -> None:
    """From now on plug-ins in this process may use slime's names. Calling it again changes nothing."""
    answer_to_slime_names()
    OF_TURN["sample"] = sample_of_turn
    OF_BATCH.update({"args": lambda values: arguments(values["config"]), "batch": batch, "logits": logits})
