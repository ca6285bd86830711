"""Notes on settings that are valid and have less effect than expected.

no effect in this run: --lambd, --value-clip (need --advantage-estimator ppo); MAJORITY_VOTE_N (needs --judge llm)
WANDB_API_KEY: nothing is sent to Weights & Biases without --use-wandb
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from slime.config.leaves import Leaf, leaves
from slime.config.sections import Config

DEFAULT = "default"
FOLLOWS = "follows from "
"""How the origin of a value begins that nobody wrote."""


def remarks(
    config: Config, origins: Mapping[str, str], environ: Mapping[str, str], sections: Collection[str]
) -> Iterator[str]:
    """One line each.

    Args:
        origins: where each value was said, by path.
        sections: those of the program that asks.
    """
    if idle := without_effect(config, origins, sections):
        by_need: dict[str, list[str]] = {}
        for leaf in idle:
            assert leaf.needs is not None
            by_need.setdefault(leaf.needs.needs, []).append(origins[leaf.path])
        parts = [f"{', '.join(names)} ({'need' if names[1:] else 'needs'} {need})" for need, names in by_need.items()]
        yield "no effect in this run: " + "; ".join(parts)
    if "monitor" in sections:
        yield from _about_wandb(config, environ)
    if "rollout" in sections and config.rollout.data_path and not config.cluster.serve:
        yield (
            f"{origins['rollout.data_path']}: trains on what is recorded there and ends, and serves nobody; "
            "leave it out to learn from live conversations"
        )


def without_effect(config: Config, origins: Mapping[str, str], sections: Collection[str]) -> list[Leaf]:
    """The settings that somebody wrote and that change nothing in this run."""
    return [
        leaf
        for leaf in leaves().values()
        if leaf.section in sections
        and leaf.needs is not None
        and not origins[leaf.path].startswith((DEFAULT, FOLLOWS))
        and getattr(getattr(config, leaf.section), leaf.name) != ""
        and not leaf.needs.holds(config)
    ]


def _about_wandb(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    key, mode = environ.get("WANDB_API_KEY"), environ.get("WANDB_MODE", "")
    if key and not config.monitor.use_wandb:
        yield (
            "WANDB_API_KEY: nothing is sent to Weights & Biases without --use-wandb, WANDB_MODE=online "
            "and its package (pip install wandb)"
        )
    elif config.monitor.use_wandb and mode in ("", "offline"):
        yield f"--use-wandb: written under {config.monitor.run_dir}/wandb and not sent; WANDB_MODE=online sends it"
