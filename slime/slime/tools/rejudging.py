"""`openclaw-rl rejudge`: stored turns again, by another judge or with another prompt.

    Store ─ every turn with a next state ─▶ Judge ─▶ Verdict ─ revise_verdict ─▶ Store: the one that counts now
                                                       └▶ a JSON line a turn on stdout, a summary on stderr

What was trained, is held by a collector, or was judged by a person keeps its verdict; so does everything with
`--dry-run`, and what got no answer because the judge is out. Every answer of a judge is kept beside the others in any
case that changes the store.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slime.config.loader import load_config
from slime.data.stitching import why_not_trained
from slime.errors import ConfigError
from slime.judging.calibration import judge_again
from slime.judging.llm.prompts import INSTRUCTIONS
from slime.protocols import Judge
from slime.store import Store
from slime.store.records import encode_json
from slime.tools.calibrating import open_judge
from slime.tools.transfer import check_store
from slime.types import Turn

PROG = "openclaw-rl rejudge"


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
    for session_id in await store.session_ids():
        turns = [turn for turn in await store.session(session_id) if _can_be_judged(turn)]
        async for turn, verdict in judge_again(turns, judge, num_workers):
            before = await store.verdict(turn.turn_id)
            is_out = verdict.ask_again_after_s is not None
            is_revised = not (dry_run or is_out) and await store.revise_verdict(turn.turn_id, verdict)
            score = None if before is None else before.score
            yield Rejudged(turn.turn_id, score, verdict.score, verdict.reason, is_revised)


def _can_be_judged(turn: Turn) -> bool:
    return bool(turn.next_state) and not why_not_trained(turn)


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
    config = load_config(list(arguments), prog=PROG, sections=("judge",)).judge
    check_store(buffer_dir)
    if prompt is not None and config.judge != "llm":
        raise ConfigError(f"--prompt {prompt}: the {config.judge} judge reads none; use --judge llm")
    instructions = INSTRUCTIONS if prompt is None else _read(prompt)
    counted: Counter[str] = Counter()
    async with open_judge(config, instructions) as judge, Store.open(buffer_dir, appends=False) as store:
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
