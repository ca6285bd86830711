"""A client's request and our reply to it: `Turn`, and what it is made of.

messages, prompt ids ─▶ Completion (ids, log-probs, versions) ─▶ Turn ─ next_state ─▶ ready to be judged
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""An OpenAI chat message exactly as the client sent it: `{"role": "user", "content": "Hi"}`."""


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


def are_logprobs(values: Sequence[float]) -> bool:
    """Whether every value is finite and not above zero, but for rounding.

    >>> are_logprobs((-0.11, 0.0)), are_logprobs((-0.11, float("nan")))
    (True, False)
    """
    # Built-ins over all of them: a turn has thousands, and the server checks each. They miss NaN, which a sum shows.
    return not values or (-math.inf < min(values) and max(values) <= 1e-4 and not math.isnan(sum(values)))


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
        if not are_logprobs(self.logprobs):
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
        source: whose turn it is (a user, a file): baselines are kept per source, adapters may be.
        reason: why it is excluded or aborted; empty otherwise.
        template_options: variables that the chat template was given, e.g. `{"enable_thinking": False}`.
        matching: what its writer needs to find it again from later requests; opaque to every reader but that one.
        details: what else is worth keeping, for people: nothing is decided by it.
        ancestors: turns that it continues, nearest first, as the store says of claimed turns; None: not looked up.
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
    source: str = ""
    reason: str = ""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    matching: Mapping[str, Any] | None = None
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
