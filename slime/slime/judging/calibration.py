"""Calibration of a judge on a labelled set: agreement, Cohen's kappa, positive rate and confusion matrix.

    FILE.jsonl ─▶ Labelled × n ─▶ judge_again ─▶ (label, score) × n ─▶ Calibration

A line of the file is one reaction that a person labelled:

    {"request": "…", "reply": "…", "next": [{"role": "user", "content": "Thanks!"}], "label": 1}
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.errors import ConfigError
from slime.protocols import Judge
from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, Verdict, VersionSpan

LABELLED = Path(__file__).with_name("next_states.jsonl")
"""The set that ships: 506 reactions of people and tools, labelled by hand."""

LABELS = (-1, 0, 1)
UNJUDGED = "unjudged"


@dataclass(frozen=True, slots=True)
class Labelled:
    """A reaction and what a person says it means: −1, 0 or 1."""

    turn: Turn
    label: int


def read_labelled(path: Path) -> list[Labelled]:
    """The set in a file. Raises ConfigError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_labelled(json.loads(line), f"labelled{number}"))
            except (ValueError, KeyError, TypeError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                raise ConfigError(f"{path}:{number}: not a labelled reaction: {reason}") from None
    if not found:
        raise ConfigError(f"{path}: no labelled reactions; one JSON object a line, with request, reply, next and label")
    return found


def _labelled(row: dict[str, Any], turn_id: str) -> Labelled:
    """A turn around a reaction; ids and log-probs, which no judge looks at, are stand-ins."""
    label, following = row["label"], row["next"]
    if label not in LABELS:
        raise ValueError(f"label must be -1, 0 or 1, not {label!r}")
    messages: list[Message] = [{"role": "user", "content": following}] if isinstance(following, str) else following
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise ValueError("next must be a text or a list of messages")
    reply = row["reply"]
    turn = Turn(
        turn_id=turn_id,
        session_id=turn_id,
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=({"role": "user", "content": row["request"]},),
        prompt_ids=(0,),
        completion=Completion((0,), (0.0,), str(reply), "stop", (VersionSpan(0, 0, 1),)),
        sampling=SamplingParams(),
        reply=reply if isinstance(reply, dict) else {"role": "assistant", "content": reply},
        next_state=tuple(messages),
    )
    return Labelled(turn, int(label))


async def judge_again(turns: Iterable[Turn], judge: Judge, num_workers: int = 4) -> AsyncIterator[tuple[Turn, Verdict]]:
    """Every turn with a verdict of this judge, in order; `num_workers` are judged at once."""
    waiting: list[tuple[Turn, asyncio.Task[Verdict]]] = []
    try:
        for turn in turns:
            waiting.append((turn, asyncio.ensure_future(judge.judge(turn))))
            if len(waiting) >= num_workers:
                first, task = waiting.pop(0)
                yield first, await task
        while waiting:
            first, task = waiting.pop(0)
            yield first, await task
    finally:
        for _, task in waiting:
            task.cancel()
        await asyncio.gather(*(task for _, task in waiting), return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a judge stands to the labels.

    Attributes:
        confusion: turns by (label, what the judge said); the latter −1, 0, 1 or None for unjudged.
        mean_agreement: of the votes with each other, over the judged turns.
        mean_vote_entropy: in bits, over the judged turns.
    """

    confusion: Counter[tuple[int, int | None]]
    mean_agreement: float
    mean_vote_entropy: float

    @property
    def num_turns(self) -> int:
        return self.confusion.total()

    @property
    def num_judged(self) -> int:
        return sum(count for (_, said), count in self.confusion.items() if said is not None)

    @property
    def agreement(self) -> float:
        """Share of the judged turns where judge and label say the same."""
        same = sum(count for (label, said), count in self.confusion.items() if label == said)
        return same / self.num_judged if self.num_judged else 0.0

    @property
    def opposite(self) -> float:
        """Share of the judged turns where one says 1 and the other −1: what does harm."""
        wrong = sum(count for (label, said), count in self.confusion.items() if said and label == -said)
        return wrong / self.num_judged if self.num_judged else 0.0

    @property
    def kappa(self) -> float:
        """Cohen's κ = (p₀ − pₑ) / (1 − pₑ) over the judged turns (Cohen 1960): 1 perfect, 0 as good as chance.

        Where label and judge both only ever say one and the same, chance explains everything and κ counts as 0.
        """
        by_label: Counter[int] = Counter()
        by_judge: Counter[int] = Counter()
        for (label, said), count in self.confusion.items():
            if said is not None:
                by_label[label] += count
                by_judge[said] += count
        total = self.num_judged
        expected = sum(by_label[value] * by_judge[value] for value in LABELS) / total**2 if total else 1.0
        return (self.agreement - expected) / (1 - expected) if expected < 1 else 0.0

    @property
    def positive_rate(self) -> float:
        """Share of the judged turns that the judge calls good."""
        good = sum(count for (_, said), count in self.confusion.items() if said == 1)
        return good / self.num_judged if self.num_judged else 0.0

    @property
    def labelled_positive_rate(self) -> float:
        """Share of all turns that are labelled good."""
        return sum(count for (label, _), count in self.confusion.items() if label == 1) / self.num_turns

    def as_json(self) -> dict[str, Any]:
        """Everything, by name; `confusion` by label, then by what the judge said."""
        rows = {
            str(label): {
                UNJUDGED if said is None else str(said): self.confusion[label, said] for said in (*LABELS, None)
            }
            for label in LABELS
        }
        names = ("num_turns", "num_judged", "agreement", "opposite", "kappa", "positive_rate")
        figures = {name: getattr(self, name) for name in (*names, "labelled_positive_rate")}
        votes = {"mean_vote_agreement": self.mean_agreement, "mean_vote_entropy": self.mean_vote_entropy}
        return {**figures, **votes, "confusion": rows}


async def calibrate(judge: Judge, labelled: Sequence[Labelled], num_workers: int = 4) -> Calibration:
    """Have a judge judge a labelled set. A score between the labels counts as its sign."""
    confusion: Counter[tuple[int, int | None]] = Counter()
    agreements: list[float] = []
    entropies: list[float] = []
    labels = {row.turn.turn_id: row.label for row in labelled}
    async for turn, verdict in judge_again((row.turn for row in labelled), judge, num_workers):
        said = None if verdict.score is None else (verdict.score > 0) - (verdict.score < 0)
        confusion[labels[turn.turn_id], said] += 1
        if said is not None:
            agreements.append(verdict.agreement)
            entropies.append(verdict.vote_entropy)
    count = max(1, len(agreements))
    return Calibration(confusion, sum(agreements) / count, sum(entropies) / count)
