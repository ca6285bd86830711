"""Defines the methods and baselines of a comparison by name.

    binary-rl, opd, combine ─▶ Method ─▶ flags of slime/train.py: a folder's loss, its rollout, a recipe
    … -lora                 ─▶ the same, training an adapter
    untrained, memory, best-of-n ─▶ Baseline ─▶ an assistant in front of the untrained model

A method is defined by the files in its folder alone; nothing here depends on their content. `--method-dir` adds a
folder of your own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_test.demo import RECIPE
from openclaw_test.people.assistants import Assistant, BestOfN, MemoryAssistant
from openclaw_test.people.sessions import reaction_score
from openclaw_test.people.users import User
from slime.errors import ConfigError, nearest

ROOT = Path(__file__).resolve().parents[1]

ADAPTED = "-lora"
"""The suffix of a method's name when it trains an adapter."""

LORA_RECIPE = ("--use-lora", "--lora-rank", "8", "--lora-alpha", "16", "--lr", "4e-3")
"""Added to a method's flags by `-lora`: the published rank, and eight times the demo's learning rate for all weights.
At six times, OPD, which makes few updates, is slower; at ten, Binary RL loses some accuracy."""


@dataclass(frozen=True, slots=True)
class Method:
    """A training method.

    >>> Method("opd", ROOT / "openclaw-opd")

    Attributes:
        folder: contains `custom_loss.py` and `custom_rollout.py`.
        recipe: its own flags, appended to the shared ones (`demo.RECIPE`).
    """

    name: str
    folder: Path
    recipe: tuple[str, ...] = ()

    def flags(self) -> list[str]:
        """Flags of `slime/train.py`; raises ConfigError when a file is missing."""
        loss, rollout = self.folder / "custom_loss.py", self.folder / "custom_rollout.py"
        for file in (loss, rollout):
            if not file.is_file():
                raise ConfigError(f"method {self.name}: {file} does not exist")
        return [
            *("--custom-loss-function-path", str(loss), "--rollout-function-path", str(rollout)),
            *RECIPE,
            *self.recipe,
        ]

    @property
    def adapted(self) -> Method:
        """The same method, training a LoRA adapter instead of all weights."""
        return dataclasses.replace(self, name=self.name + ADAPTED, recipe=(*self.recipe, *LORA_RECIPE))


METHODS: Mapping[str, Method] = {
    "binary-rl": Method("binary-rl", ROOT / "openclaw-rl"),
    "opd": Method("opd", ROOT / "openclaw-opd", ("--lr", "1e-3")),
    "combine": Method("combine", ROOT / "openclaw-combine", ("--lr", "1e-3", "--w-opd", "3")),
}


Baseline = Callable[[Assistant, Sequence[User]], Assistant]
"""(the served model, the users to come) → the assistant that answers them."""


def baselines(num_replies: int) -> Mapping[str, Baseline]:
    """The training-free baselines; `num_replies` is the n of best-of-n."""
    return {
        "untrained": lambda inner, users: inner,
        "memory": lambda inner, users: MemoryAssistant(inner),
        f"best-of-{num_replies}": lambda inner, users: BestOfN(inner, num_replies, reaction_score(users)),
    }


def chosen_arms(
    names: str, known: Mapping[str, Baseline], method_dirs: Sequence[str] = ()
) -> tuple[dict[str, Baseline], dict[str, Method]]:
    """The baselines and methods that `--arms` selects; `all` is every baseline and every full-weight method.

    Raises:
        ConfigError: an unknown name, or a method with missing files.
    """
    own = {Path(path).resolve().name: Method(Path(path).resolve().name, Path(path).resolve()) for path in method_dirs}
    methods = {**METHODS, **own}
    wanted = [*known, *methods] if names == "all" else [part.strip() for part in names.split(",") if part.strip()]
    methods |= {method.adapted.name: method.adapted for method in methods.values()}
    every = [*known, *methods]
    for name in wanted:
        if name not in every:
            raise ConfigError(f"--arms: unknown {name!r}; choose from {', '.join(every)}, all{nearest(name, every)}")
    for name in wanted:
        if name in methods:
            methods[name].flags()
    return (
        {name: known[name] for name in wanted if name in known},
        {name: methods[name] for name in wanted if name in methods},
    )
