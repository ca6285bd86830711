"""What is said of a turn: by judges, as `Verdict`s made of `Judgement`s, and by people, as `Feedback`.

Judgement × votes ─▶ Verdict (score, hints, or when to ask again)      Feedback ─▶ outranks every judge
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime.types.turns import Message

LARGEST_REWARD = 1e6
"""Scores and rewards lie within ± this: one that does not is a mistake, and would be all that an update is about."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer of one judge on a turn, kept for ever: enough to read it again, or to ask another model.

    >>> Judgement("llm", 1.0, "Qwen3-4B", prompt=({"role": "user", "content": "…"},), answer="Fine. \\boxed{1}")

    Attributes:
        judge: the way of judging: `llm`, `rule`, `plugin`, `hint`, …
        score: what was read in the answer; None when the vote failed.
        model: who answered; empty where no model was asked.
        prompt: the chat that was shown.
        answer: the raw words.
        failure: why there is no score.
        latency_s: how long it took; 0 where it was not measured.
        created_at: seconds since 1970; 0 until it is stored.
        details: whatever else the judge kept, for people: nothing is decided by it.
        group: the turns that were compared in it, sorted; empty where the reply was judged by itself.
        agreement: of the verdict that such a comparison came to.
    """

    judge: str
    score: float | None
    model: str = ""
    prompt: tuple[Message, ...] = ()
    answer: str = ""
    failure: str = ""
    latency_s: float = 0.0
    created_at: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    group: tuple[str, ...] = ()
    agreement: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge made of a turn.

    >>> Verdict(score=1.0, votes=(1.0, 1.0, None), agreement=1.0, judge="llm")

    Attributes:
        score: −1, 0 or 1 (a plug-in may give any finite number); None = unjudged, which is no score at all.
        votes: one entry a vote; None where that vote failed.
        agreement: share of the valid votes that agree with the score, 0..1.
        hints: what the reply should have heeded, read from its next state, the preferred one first; with one of them a
            teacher can score the reply.
        reason: why the score is what it is, or why there is none; for people.
        details: whatever else the judge kept, for people: nothing is decided by it.
        zero_counts: whether a score of 0 is a reward like any other, as where a plug-in or a person gave the number.
            Judges of −1, 0 and 1 mean by 0 that they have nothing to say.
        judgements: the answers it was made of. The store keeps them apart from the verdict, and over later ones.
        retry_after_s: the score is missing because the judge was unavailable: seconds after which to ask again.
        hint_retry_after_s: the same for the hints.
    """

    score: float | None
    votes: tuple[float | None, ...] = ()
    agreement: float = 1.0
    hints: tuple[str, ...] = ()
    judge: str = ""
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    zero_counts: bool = False
    judgements: tuple[Judgement, ...] = ()
    retry_after_s: float | None = None
    hint_retry_after_s: float | None = None

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"a score must be finite, not {self.score}")
        if self.score is not None and abs(self.score) > LARGEST_REWARD:
            raise ValueError(f"a score lies within ±{LARGEST_REWARD:g}, and this is {self.score:g}")
        if isinstance(self.hints, str):
            raise ValueError(f"hints is a tuple of texts, not the text {self.hints!r}")

    @property
    def is_judged(self) -> bool:
        return self.score is not None

    @property
    def hint(self) -> str | None:
        """The preferred hint."""
        return self.hints[0] if self.hints else None

    @property
    def vote_entropy(self) -> float:
        """Entropy of the valid votes in bits: 0 when all agree, 1 when two scores share them evenly."""
        valid = [vote for vote in self.votes if vote is not None]
        shares = [count / len(valid) for count in Counter(valid).values()]
        return -math.fsum(share * math.log2(share) for share in shares) + 0.0  # no minus zero

    @property
    def has_reward(self) -> bool:
        """Whether the score is one to learn from: any number, but for the 0 of a judge that means nothing by it."""
        return self.score is not None and (self.score != 0 or self.zero_counts)

    @property
    def is_effective(self) -> bool:
        """Whether the verdict says anything: a reward, or a hint."""
        return self.has_reward or bool(self.hints)

    @property
    def ask_again_after_s(self) -> float | None:
        """Seconds to wait before asking again, for the score if there is none and for the hints; None if final."""
        score_wait_s = None if self.is_judged else self.retry_after_s
        return max((wait for wait in (score_wait_s, self.hint_retry_after_s) if wait is not None), default=None)

    def as_judgements(self) -> tuple[Judgement, ...]:
        """The answers it was made of; a judge that kept none is itself the one."""
        if self.judgements:
            return self.judgements
        if self.is_judged:
            return (Judgement(self.judge, self.score, answer=self.reason),)
        return (Judgement(self.judge, None, failure=self.reason or "no reason given"),)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a person said of a turn outside the conversation. It may come late, and again: the newest counts.

    >>> Feedback(kind="score", value=-0.5, text="too long")

    Attributes:
        kind: `thumbs`, `score` or `text`.
        value: −1..1; None for words alone, which a judge reads as if they were the next state.
        created_at: seconds since 1970.
        number: grows with every feedback that is stored; 0 before.
    """

    kind: str
    value: float | None = None
    text: str = ""
    created_at: float = 0.0
    number: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("thumbs", "score", "text"):
            raise ValueError(f"kind must be thumbs, score or text, not {self.kind!r}")
        if self.value is not None and not -1.0 <= self.value <= 1.0:
            raise ValueError(f"a feedback's value is in −1..1, not {self.value}")
        if self.value is None and (self.kind != "text" or not self.text.strip()):
            raise ValueError("a feedback needs a value, or words")
