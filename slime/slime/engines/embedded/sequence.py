"""One request on its way through the engine.

The engine loop alone writes to a sequence. The HTTP side may read what an event has announced: the lists only grow,
so `output_ids[:n]` is settled once an event has said n.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from slime.engines.embedded.sampling import RowSampling
from slime.engines.embedded.slots import Slot

FinishReason = dict[str, Any]
"""`{"type": "stop", "matched": 7}`, `{"type": "length", "length": 64}` or `{"type": "abort", "message": …}`."""

TopRow = list[tuple[float, int]]
"""(log-prob, id) of several ids at one place."""


@dataclass(frozen=True, slots=True)
class DecodingParams:
    """What the dialect's `sampling_params` ask for. See `slime.types.SamplingParams` for those shared with it."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class LogprobsWanted:
    """Which log-probs a reply carries.

    Attributes:
        start: first prompt position whose log-prob is wanted; the prompt's length when none is.
        num_top: that many most likely ids at every place.
        token_ids: these ids at every place.
    """

    start: int
    num_top: int = 0
    token_ids: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, what it has generated, and where its keys and values lie.

    Attributes:
        tokens: prompt and output ids; `slot.length` of them are computed.
        spans: `[version, end]` pairs: output tokens up to `end` came from weights `version`.
        input_logprobs: log-prob of prompt tokens `logprobs.start + 1` onward, at temperature 1.
    """

    request_id: str
    prompt_ids: list[int]
    params: DecodingParams
    logprobs: LogprobsWanted | None = None
    stream: bool = False
    seed: int = 0
    tokens: list[int] = field(default_factory=list)
    slot: Slot | None = None
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[TopRow] = field(default_factory=list)
    output_chosen: list[TopRow] = field(default_factory=list)
    input_logprobs: list[float] = field(default_factory=list)
    input_top: list[TopRow] = field(default_factory=list)
    input_chosen: list[TopRow] = field(default_factory=list)
    spans: list[tuple[str, int]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    final_version: str = ""
    cached_tokens: int = 0
    num_retractions: int = 0
    sampling: RowSampling = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt_ids)
        self.seed = secrets.randbits(63) if self.params.seed is None else self.params.seed
        self.sampling = self._row_sampling(frozenset())

    @property
    def computed(self) -> int:
        return self.slot.length if self.slot is not None else 0

    @property
    def remaining(self) -> int:
        """Tokens that the model has not seen yet: 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def reuse_limit(self) -> int:
        """How many leading tokens may come from a cache: the last one, and those to be scored, must be computed."""
        limit = len(self.tokens) - 1
        if self.logprobs is not None and not self.is_prompt_scored:
            limit = min(limit, self.logprobs.start)
        return limit

    @property
    def is_prompt_scored(self) -> bool:
        wanted = 0 if self.logprobs is None else max(0, len(self.prompt_ids) - 1 - self.logprobs.start)
        return len(self.input_logprobs) >= wanted

    def forbid(self, ids: frozenset[int]) -> None:
        """Never sample these ids, until told otherwise with an empty set."""
        if self.sampling.banned != ids:
            self.sampling = self._row_sampling(ids)

    def restart(self) -> None:
        """Its keys and values are gone. What was sampled stays; a half-scored prompt is scored anew."""
        if not self.is_prompt_scored:
            self.input_logprobs.clear()
            self.input_top.clear()
            self.input_chosen.clear()
        self.num_retractions += 1

    def append(self, token_id: int, logprob: float, version: str) -> None:
        """One more sampled token, made by weights `version`."""
        self.tokens.append(token_id)
        self.output_logprobs.append(logprob)
        self.output_ids.append(token_id)
        end = len(self.output_ids)
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1] = (version, end)
        else:
            self.spans.append((version, end))

    def _row_sampling(self, banned: frozenset[int]) -> RowSampling:
        params = self.params
        return RowSampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            seed=self.seed,
            output_ids=self.output_ids,
            banned=banned,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """An event: the first `num_tokens` output tokens of a sequence are settled; with `finished`, it is over."""

    sequence: Sequence
    num_tokens: int
    finished: bool
