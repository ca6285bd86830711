"""A judge outside a run: `openclaw-rl rejudge` and `openclaw-rl judge calibrate`, which take a judge's flags.

    Store ─ turns with a next state ─▶ Judge ─▶ Verdict ─ revise_verdict ─▶ Store: the one that counts now
                                                  └▶ a JSON line a turn on stdout, a summary on stderr
    labelled reactions ──────────────▶ Judge ─▶ Calibration ─▶ JSON on stdout, a table on stderr

What was trained, is held by a collector, or was judged by a person keeps its verdict; so does every turn with
`--dry-run`, and one that got no answer because the judge is out. Every answer of a judge is kept beside the others
where the store is changed.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slime.config.loader import load_config
from slime.config.sections import JudgeConfig
from slime.data.stitching import why_not_trained
from slime.errors import ConfigError
from slime.judging.calibration import LABELS, Calibration, calibrate, judge_again, read_labelled
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.prompts import INSTRUCTIONS
from slime.judging.rules.judge import RuleJudge
from slime.protocols import Judge
from slime.rollout.judge_endpoint import judge_model_at
from slime.store import Store
from slime.store.records import encode_json


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


# ── Stored turns, judged again ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Rejudged:
    """One turn, judged again.

    >>> Rejudged("t1", 1.0, -1.0, "correction: no, that is wrong", is_revised=True)

    Attributes:
        before: its score by then; None where there was none.
        is_revised: whether the new verdict is the one that counts now.
    """

    turn_id: str
    before: float | None
    after: float | None
    reason: str
    is_revised: bool


async def rejudge(
    store: Store, judge: Judge, *, num_workers: int = 4, dry_run: bool = False
) -> AsyncIterator[Rejudged]:
    """Every turn that could be trained and was followed by something, session by session."""
    async for _, session in store.sessions():
        turns = [turn for turn in session if turn.next_state and not why_not_trained(turn)]
        async for turn, verdict in judge_again(turns, judge, num_workers):
            before = await store.verdict(turn.turn_id)
            is_out = verdict.ask_again_after_s is not None
            is_revised = not (dry_run or is_out) and await store.revise_verdict(turn.turn_id, verdict)
            score = None if before is None else before.score
            yield Rejudged(turn.turn_id, score, verdict.score, verdict.reason, is_revised)


async def run_rejudging(
    buffer_dir: Path, arguments: Sequence[str], *, prompt: Path | None = None, dry_run: bool = False
) -> None:
    """Judge a store again and print what came of it.

    Args:
        arguments: the flags of the judge, as in a training run.
        prompt: file of instructions for an llm judge.

    Raises:
        ConfigError: the store, the prompt or the judge is not to be had.
    """
    config = load_config(list(arguments), prog="openclaw-rl rejudge", sections=("judge",)).judge
    if prompt is not None and config.judge != "llm":
        raise ConfigError(f"--prompt {prompt}: the {config.judge} judge reads none; use --judge llm")
    instructions = INSTRUCTIONS if prompt is None else _read(prompt)
    counted: Counter[str] = Counter()
    async with Store.open_existing(buffer_dir) as store, open_judge(config, instructions) as judge:
        async for turn in rejudge(store, judge, num_workers=config.num_judge_workers, dry_run=dry_run):
            counted["judged"] += 1
            counted["unjudged"] += turn.after is None
            counted["changed"] += turn.before is not None and turn.before != turn.after
            counted["revised"] += turn.is_revised
            line = {"turn_id": turn.turn_id, "before": turn.before, "after": turn.after, "reason": turn.reason}
            sys.stdout.write(encode_json(line | {"revised": turn.is_revised}).decode() + "\n")
    print(
        f"{counted['judged']} turns judged again, {counted['unjudged']} without a score; "
        f"{counted['changed']} scores are other than before, {counted['revised']} verdicts revised",
        file=sys.stderr,
    )


def _read(prompt: Path) -> str:
    try:
        return prompt.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt {prompt}: {error}") from None


# ── A labelled set ───────────────────────────────────────────────────────────────────────────────────────────────────


async def run_calibration(labelled: Path, arguments: Sequence[str]) -> None:
    """Judge the set and print what came of it.

    Args:
        arguments: the flags of the judge, as in a training run.

    Raises:
        ConfigError: the set or the judge is not to be had.
    """
    config = load_config(list(arguments), prog="openclaw-rl judge calibrate", sections=("judge",)).judge
    rows = read_labelled(labelled)
    async with open_judge(config) as judge:
        result = await calibrate(judge, rows, config.num_judge_workers)
    console = Console(stderr=True, highlight=False)
    console.print(as_table(result, f"{config.judge} judge, {labelled.name}"))
    console.print(figures_of(result))
    sys.stdout.write(json.dumps(result.as_json(), indent=2) + "\n")


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
