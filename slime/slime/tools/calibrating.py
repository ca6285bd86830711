"""`openclaw-rl judge calibrate`: a judge against a labelled set, as a table for people and JSON for programs.

--judge, --judge-url … ─▶ Judge ─┐
--labelled FILE ─▶ Labelled × n ─┴▶ Calibration ─▶ table on stderr, JSON on stdout
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slime.config import JudgeConfig
from slime.config.loader import load_config
from slime.errors import ConfigError
from slime.judging.calibration import LABELS, Calibration, calibrate, read_labelled
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.prompts import INSTRUCTIONS
from slime.judging.rules.judge import RuleJudge
from slime.protocols import Judge
from slime.rollout.judge_endpoint import judge_model_at

PROG = "openclaw-rl judge calibrate"


async def run_calibration(labelled: Path, arguments: Sequence[str]) -> None:
    """Judge the set and print what came of it.

    Args:
        arguments: the flags of the judge, as in a training run.

    Raises:
        ConfigError: the set or the judge is not to be had.
    """
    config = load_config(list(arguments), prog=PROG, sections=("judge",)).judge
    rows = read_labelled(labelled)
    async with open_judge(config) as judge:
        result = await calibrate(judge, rows, config.num_judge_workers)
    console = Console(stderr=True, highlight=False)
    console.print(as_table(result, f"{config.judge} judge, {labelled.name}"))
    console.print(figures_of(result))
    sys.stdout.write(json.dumps(result.as_json(), indent=2) + "\n")


@contextlib.asynccontextmanager
async def open_judge(config: JudgeConfig, instructions: str = INSTRUCTIONS) -> AsyncIterator[Judge]:
    """The rules, or a model that runs already, told these instructions."""
    if config.judge == "rule":
        yield RuleJudge()
        return
    if not config.judge_url:
        raise ConfigError("--judge llm: say with --judge-url where the model runs; none is started here")
    async with judge_model_at(config, config.judge_model_path) as model:
        yield LlmJudge(model, config, instructions)


def as_table(result: Calibration, title: str) -> Table:
    """The confusion, a row a label."""
    table = Table(title=title)
    table.add_column("label")
    for said in ("judged -1", "judged 0", "judged 1", "unjudged"):
        table.add_column(said, justify="right")
    for label in LABELS:
        table.add_row(str(label), *(str(result.confusion[label, said]) for said in (*LABELS, None)))
    return table


def figures_of(result: Calibration) -> str:
    """What the confusion comes to, in a few lines."""
    return (
        f"judged        {result.num_judged} of {result.num_turns}\n"
        f"agreement     {result.agreement:.1%}, the opposite {result.opposite:.1%}, Cohen's kappa {result.kappa:.3f}\n"
        f"good          {result.positive_rate:.1%} judged, {result.labelled_positive_rate:.1%} labelled\n"
        f"votes         agree {result.mean_agreement:.1%}, entropy {result.mean_vote_entropy:.3f} bits"
    )
