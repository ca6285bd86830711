"""Makes a process understand code that was written for slime; nothing below this package knows of it.

    from slime.utils.types import Sample          ─▶ slime.compat.sample.Sample
    from slime.utils.http_utils import post       ─▶ slime.compat.names.post
    a reward asks for `sample`                    ─▶ compat/conversion.py
    a loss asks for `args`, `batch`, `logits`     ─▶ compat/losses.py

A finder makes a module of slime's when it is first imported; ours keep their own names and places. What is not in the
table does not exist, and importing it is an error like any other.

The programs that load plug-ins call `install`: the driver in `slime.preflight`, each trainer rank in
`cluster/learner.py`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from slime.compat.conversion import sample_of_turn
from slime.compat.losses import arguments, batch, logits
from slime.plugins.rewards import OF_TURN
from slime.trainers.loss_values import OF_BATCH

_SAMPLE = "slime.compat.sample"
_PROMPTS = "slime.compat.prompts.rollout"
_NAMES = "slime.compat.names"

SLIME_MODULES: Mapping[str, Mapping[str, str]] = {
    "slime.utils": {},
    "slime.utils.types": {"Sample": _SAMPLE},
    "slime.utils.async_utils": {"run": "asyncio"},  # a rollout function runs on a thread that has no loop
    "slime.utils.http_utils": {"post": _NAMES},
    "slime.rollout.prompts": {"generate_rollout": _PROMPTS, "PromptRun": _PROMPTS},  # its own earlier name, still typed
    "slime.rollout.base_types": {"RolloutFnTrainOutput": _SAMPLE, "RolloutFnEvalOutput": _SAMPLE},
    "slime.rollout.data_source": {"DataSource": "slime.compat.prompts.source"},
    "slime.rollout.filter_hub": {},
    "slime.rollout.filter_hub.base_types": {"DynamicFilterOutput": _SAMPLE},
    "slime.rollout.sglang_rollout": {"GenerateState": _NAMES, "generate_rollout": _PROMPTS},
}
"""slime's module → its names → the module that holds them here."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in SLIME_MODULES:
            return None
        is_package = any(name.startswith(fullname + ".") for name in SLIME_MODULES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        for name, home in SLIME_MODULES[module.__name__].items():
            setattr(module, name, getattr(importlib.import_module(home), name))


_FINDER = _Finder()


def install() -> None:
    """From now on plug-ins in this process may use slime's names. Calling it again changes nothing."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)
    OF_TURN["sample"] = sample_of_turn
    OF_BATCH.update({"args": lambda values: arguments(values["config"]), "batch": batch, "logits": logits})
