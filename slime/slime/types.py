"""The nouns that flow through every loop. Standard library only, so that anybody may import them.

A client's request and our reply become a `Turn`; what the client sends next becomes the turn's next
state; a judge turns both into a `Verdict`; turn and verdict become a `Sample`; samples compared with
each other form a `SampleGroup`; the trainer takes a `Batch` and answers with a `TrainReport`.

    request + Completion ─▶ Turn ─ next_state ─▶ Verdict ─▶ Sample ─▶ SampleGroup ─▶ Batch ─▶ TrainReport

All of them are frozen and check themselves on construction: a value that exists is a value that holds.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""An OpenAI chat message exactly as the client sent it: `{"role": "user", "content": "Hi"}`."""


LARGEST_REWARD = 1e6
"""Scores and rewards lie within ± this: one that does not is a mistake, and would be all that an update is about."""


class TurnKind(enum.StrEnum):
    """How a request stands in its conversation."""

    MAIN = "main"  # starts a conversation, or continues it at its newest reply
    SIDE = "side"  # a client's housekeeping (title, commit message, …): served, never trained
    RETRY = "retry"  # the same request again, because the first reply failed or never arrived
    BRANCH = "branch"  # a second continuation of a reply that already has one: regenerate, edit, rewind
    COMPACTION = "compaction"  # asks for a summary that will replace the history: served, never trained

    @property
    def is_trainable(self) -> bool:
        """Whether a judged turn of this kind may become a sample."""
        return self not in (TurnKind.SIDE, TurnKind.COMPACTION)


class TurnState(enum.StrEnum):
    """Where a turn stands between the client and the trainer. The allowed moves are data: see `slime.store.states`."""

    SERVED = "served"  # committed and acknowledged; no next state yet
    READY = "ready"  # its next state is known: it can be judged
    CLAIMED = "claimed"  # leased by a collector until it acks or the lease runs out
    JUDGED = "judged"  # its verdict is stored; waiting in a sample queue
    TRAINED = "trained"  # consumed by the update recorded with it
    EXCLUDED = "excluded"  # will never be trained, for the reason recorded with it
    ABORTED = "aborted"  # the reply broke off before its end and was never acknowledged


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a reply was sampled with.

    >>> SamplingParams(temperature=0.7, max_new_tokens=128)
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    max_new_tokens: int = 1024
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be a finite number ≥ 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")

    @property
    def is_reproducible(self) -> bool:
        """Whether a forward pass at `temperature` gives the distribution that was sampled from.

        Truncation (top-p, top-k, min-p), penalties and greedy decoding change it in ways that the
        trainer does not repeat; such turns are served and stored, and left out of training.
        """
        return (
            self.temperature > 0
            and self.top_p == 1.0
            and self.top_k in (-1, 0)
            and self.min_p == 0.0
            and self.repetition_penalty == 1.0
            and self.frequency_penalty == 0.0
            and self.presence_penalty == 0.0
        )


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start` up to, but not including, `end` of a completion were sampled from weights `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine sampled: ids and log-probs from one place, of one length.

    >>> Completion((9707, 13), (-0.11, -0.72), "Hello.", "stop", (VersionSpan(3, 0, 2),))

    Attributes:
        token_ids: sampled ids, the stop token included when one was sampled.
        logprobs: natural log-probability of each id in the distribution it was drawn from.
        text: the detokenised reply without stop tokens, as the client saw it.
        finish_reason: `stop`, `length` or `abort`.
        spans: which policy version made which tokens; together they cover all of them in order.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: str
    spans: tuple[VersionSpan, ...]

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} token ids but {len(self.logprobs)} log-probs")
        if not all(math.isfinite(value) and value <= 1e-4 for value in self.logprobs):
            raise ValueError("log-probs must be finite and not above zero")
        position = 0
        for span in self.spans:
            if span.start != position or span.end <= span.start:
                raise ValueError(f"version spans must follow each other without a gap: {self.spans}")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(f"version spans cover {position} of {len(self.token_ids)} tokens")

    @property
    def policy_versions(self) -> tuple[int, ...]:
        """The policy version of each token, e.g. `(3, 3, 4)`."""
        return tuple(span.version for span in self.spans for _ in range(span.end - span.start))


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and our reply to it, a node of its conversation's tree.

    Attributes:
        turn_id: letters and digits only, so that tool-call ids can carry it through every client.
        session_id: the conversation. Named by the client, else found by content.
        parent_id: the turn whose reply is the last of ours in this request; None at a root.
        messages: the request's messages as they came, system prompt included.
        tools: the request's tool definitions as they came.
        prompt_ids: the token ids that were fed to the engine.
        reply: our assistant message as it was sent (content, reasoning_content, tool_calls).
        next_state: every message that followed the reply, less the client's ephemeral ones; None while unknown.
        policy_version: newest version that made a token of it.
        retry_of: the turn whose request this one repeats.
        details: what else is worth keeping: headers that identify, source of the session, reason of exclusion.
        ancestors: turns that it goes on from, nearest first, as the store says of claimed turns; None: nobody asked it.
    """

    turn_id: str
    session_id: str
    parent_id: str | None
    kind: TurnKind
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    completion: Completion
    sampling: SamplingParams
    reply: Message
    tools: tuple[dict[str, Any], ...] = ()
    next_state: tuple[Message, ...] | None = None
    state: TurnState = TurnState.SERVED
    retry_of: str | None = None
    created_at: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)
    ancestors: tuple[str, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.turn_id.isalnum() or not self.turn_id.isascii():
            raise ValueError(f"turn_id must be ASCII letters and digits only: {self.turn_id!r}")
        if not self.prompt_ids:
            raise ValueError(f"turn {self.turn_id}: no prompt ids")

    @property
    def policy_version(self) -> int:
        """The newest policy version among the turn's tokens."""
        return max((span.version for span in self.completion.spans), default=0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge made of a turn.

    >>> Verdict(score=1.0, votes=(1.0, 1.0, None), agreement=1.0, judge="llm")

    Attributes:
        score: −1, 0 or 1 (a plug-in may give any finite number); None = unjudged, which is no score at all.
        zero_counts: whether a score of 0 is a reward like any other, as where a plug-in or a person gave the number.
            Judges of −1, 0 and 1 mean by 0 that they have nothing to say.
        votes: one entry a vote; None where that vote failed.
        agreement: share of the valid votes that agree with the score, 0..1.
        hint: what the reply should have heeded, read from its next state; with it a teacher can score the reply.
        reason: why the score is what it is, or why there is none; for people.
    """

    score: float | None
    votes: tuple[float | None, ...] = ()
    agreement: float = 1.0
    hint: str | None = None
    judge: str = ""
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    zero_counts: bool = False

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(f"a score must be finite, not {self.score}")
        if self.score is not None and abs(self.score) > LARGEST_REWARD:
            raise ValueError(f"a score lies within ±{LARGEST_REWARD:g}, and this is {self.score:g}")

    @property
    def is_judged(self) -> bool:
        return self.score is not None

    @property
    def vote_entropy(self) -> float:
        """How undecided the valid votes were, in bits: 0 when all say the same, 1 when two scores share them evenly."""
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
        return self.has_reward or self.hint is not None


@dataclass(frozen=True, slots=True)
class Judgement:
    """One answer of one judge on a turn, as it is kept for ever: enough to read it again, or to ask somebody else.

    >>> Judgement("llm", 1.0, "Qwen3-4B", prompt=({"role": "user", "content": "…"},), answer="Fine. \\boxed{1}")

    Attributes:
        judge: the way of judging: `llm`, `rule`, `plugin`, `hint`, …
        score: what was read in the answer; None when the vote failed.
        model: who answered; empty where no model was asked.
        prompt: the chat that was shown.
        answer: the raw words.
        failure: why there is no score.
        latency_s: how long it took; 0 where nobody measured.
        created_at: seconds since 1970.
        details: whatever else the judge kept.
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


@dataclass(frozen=True, slots=True)
class Sample:
    """One flat token sequence with parallel streams; no prompt and response halves, a mask says what trains.

    >>> Sample(
    ...     token_ids=(11, 12, 13, 14, 15),
    ...     streams={"loss_mask": (0, 0, 1, 1, 1), "rollout_logprobs": (0.0, 0.0, -0.1, -0.7, -0.2),
    ...              "policy_versions": (-1, -1, 3, 3, 3)},
    ...     values={"reward": 1.0, "temperature": 1.0}, turn_ids=("t01",),
    ... )

    Attributes:
        token_ids: T ids; the prompt as it was fed, the reply as it was sampled.
        streams: token-level fields by name, each of length T; entry i is about token i, predicted from those before it.
        values: sample-level fields by name.
        turn_ids: every turn whose tokens are trained here; what an update consumed.
        trajectory_id: samples of one session or episode share it: averaged together, γ and λ act between their turns.
        source: where it comes from (a user, a task set); baselines are kept per source.
        ancestors: of each of `turn_ids`; empty or None where nobody knows, and the order of the batch counts.
    """

    token_ids: tuple[int, ...]
    streams: Mapping[str, Sequence[Any]]
    values: Mapping[str, float]
    turn_ids: tuple[str, ...]
    trajectory_id: str = ""
    source: str = ""
    ancestors: tuple[tuple[str, ...] | None, ...] = ()

    def __post_init__(self) -> None:
        for name, stream in self.streams.items():
            if len(stream) != len(self.token_ids):
                raise ValueError(f"stream {name!r} has {len(stream)} entries for {len(self.token_ids)} tokens")
        if "loss_mask" not in self.streams:
            raise ValueError("a sample needs a loss_mask stream")
        if self.streams["loss_mask"] and self.streams["loss_mask"][0]:
            raise ValueError("the first token has nothing before it and cannot be trained")

    @property
    def num_trainable_tokens(self) -> int:
        return sum(1 for flag in self.streams["loss_mask"] if flag)

    @property
    def trained_versions(self) -> frozenset[int]:
        """Every version that sampled a trained token, e.g. `{3, 4}`; 0, the model as given, where none is recorded."""
        versions = self.streams.get("policy_versions", ())
        mask = self.streams["loss_mask"]
        found = frozenset(v for v, flag in zip(versions, mask, strict=True) if flag) if versions else frozenset()
        return found or frozenset({0})


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples that are compared with each other (GRPO centring); one sample is a group of one."""

    group_id: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"group {self.group_id!r} is empty")


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update consumes."""

    groups: tuple[SampleGroup, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(sample for group in self.groups for sample in group.samples)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """Every turn consumed, in order, each once."""
        return tuple(dict.fromkeys(turn_id for sample in self.samples for turn_id in sample.turn_ids))


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What one update did.

    Attributes:
        step: number of updates made so far, this one included.
        skipped: why no update was applied (non-finite gradient, nothing to train); empty when one was.
        metrics: `loss/…` and `train/…` figures.
        left_out: by turn, why the samples of it could not be trained; the update was made without them.
    """

    step: int
    metrics: Mapping[str, float]
    skipped: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
