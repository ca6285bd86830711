"""The methods and baselines that a comparison knows: each is a name, and what it takes to run it.

    binary-rl, opd, combine ─▶ Method ─▶ flags of slime/train.py: a folder's loss, its rollout, a recipe
    … -lora                 ─▶ the same, training an adapter
    untrained, memory, best-of-n ─▶ Baseline ─▶ an assistant in front of the model as it is

A method is chosen by the files in its folder alone; nothing here knows what they do. A folder of your own takes part
with `--method-dir`.
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
"""What the name of a method ends with when it trains an adapter."""

LORA_RECIPE = ("--use-lora", "--lora-rank", "8", "--lora-alpha", "16", "--lr", "4e-3")
"""Added to a method's flags by `-lora`: the published rank, and eight times the demo's rate for all weights. At six
times OPD, which makes few updates, is slower; at ten, Binary RL loses some of its right answers."""


@dataclass(frozen=True, slots=True)
class Method:
    """Something that trains.

    >>> Method("opd", ROOT / "openclaw-opd")

    Attributes:
        folder: holds `custom_loss.py` and `custom_rollout.py`.
        recipe: its own flags, after those that all share (`demo.RECIPE`).
    """

    name: str
    folder: Path
    recipe: tuple[str, ...] = ()

    def flags(self) -> list[str]:
        """Flags of `slime/train.py`; raises ConfigError when a file is missing."""
        loss, rollout = self.folder / "custom_loss.py", self.folder / "custom_rollout.py"
        for file in (loss, rollout):
            if not file.is_file():
                raise ConfigError(f"method {self.name}: {file} is not there")
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
"""The served model and the users there will be → who answers them."""


def baselines(num_replies: int) -> Mapping[str, Baseline]:
    """What one can do without training; `num_replies` is the n of best-of-n."""
    return {
        "untrained": lambda inner, users: inner,
        "memory": lambda inner, users: MemoryAssistant(inner),
        f"best-of-{num_replies}": lambda inner, users: BestOfN(inner, num_replies, reaction_score(users)),
    }


def chosen_arms(
    names: str, known: Mapping[str, Baseline], method_dirs: Sequence[str] = ()
) -> tuple[dict[str, Baseline], dict[str, Method]]:
    """The baselines and methods that `--arms` names; `all` is every baseline, and every method with all its weights.

    Raises:
        ConfigError: a name that nobody knows, or a method whose files are missing.
    """
    own = {Path(path).resolve().name: Method(Path(path).resolve().name, Path(path).resolve()) for path in method_dirs}
    methods = {**METHODS, **own}
    wanted = [*known, *methods] if names == "all" else [part.strip() for part in names.split(",") if part.strip()]
    methods |= {method.adapted.name: method.adapted for method in methods.values()}
    every = [*known, *methods]
    for name in wanted:
        if name not in every:
            raise ConfigError(f"--arms: no {name!r} among {', '.join(every)}, all{nearest(name, every)}")
    for name in wanted:
        if name in methods:
            methods[name].flags()
    return (
        {name: known[name] for name in wanted if name in known},
        {name: methods[name] for name in wanted if name in methods},
    )
