"""One request on its way through the engine.

The engine loop alone writes to a sequence. The HTTP side may read what an event has announced: the lists only grow,
so `output_ids[:n]` is settled once an event has said n.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from slime.engines.dialect import Entry, GenerateCall, Output, extend_spans
from slime.engines.embedded.lora_layers import LiveAdapter
from slime.engines.embedded.sampling import RowSampling
from slime.engines.embedded.slots import Slot
from slime.errors import EngineRejected
from slime.types import VersionSpan

FinishReason = dict[str, Any]
"""`{"type": "stop", "matched": 7}`, `{"type": "length", "length": 64}` or `{"type": "abort", "message": …}`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request is checked against: the model's vocabulary, and the longest prompt plus reply."""

    vocab_size: int
    context_len: int


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, what it has generated, and where its keys and values lie.

    Attributes:
        max_new_tokens: how many may be sampled; 0 = only score the prompt.
        adapter: what its tokens pass through beside the base, from its first to its last; None = the base alone.
        is_probe: a health check, which does not wait for its turn.
        score_start: first prompt position whose log-prob is wanted; the prompt's length when none is.
        tokens: prompt and output ids; the first `computed` of them have their keys and values in the slot.
        input_logprobs: log-probs of prompt tokens `score_start + 1` onward, at temperature 1.
        spans: which version made which output tokens.
        final_version: the version served when it ended.
    """

    call: GenerateCall
    max_new_tokens: int
    score_start: int
    adapter: LiveAdapter | None = None
    is_probe: bool = False
    tokens: list[int] = field(init=False)
    sampling: RowSampling = field(init=False)
    slot: Slot | None = None
    output_ids: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_top: list[list[Entry]] = field(default_factory=list)
    output_chosen: list[list[Entry]] = field(default_factory=list)
    input_logprobs: list[float] = field(default_factory=list)
    input_top: list[list[Entry]] = field(default_factory=list)
    input_chosen: list[list[Entry]] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    final_version: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.call.input_ids)
        sampling = self.call.sampling
        self.sampling = RowSampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            output_ids=self.output_ids,
        )

    @classmethod
    def admit(cls, call: GenerateCall, limits: Limits, adapter: LiveAdapter | None = None) -> Sequence:
        """A sequence for a request, unless the model or its context cannot serve it: `EngineRejected`."""
        num_prompt, context_len = len(call.input_ids), limits.context_len
        if num_prompt >= context_len:
            raise EngineRejected(
                f"The input ({num_prompt} tokens) is longer than the model's context length ({context_len} tokens)."
            )
        room = context_len - num_prompt
        max_new_tokens = room if call.max_new_tokens is None else call.max_new_tokens
        if max_new_tokens > room:
            raise EngineRejected(
                "Requested token count exceeds the model's maximum context length: "
                f"{num_prompt} of the input and {max_new_tokens} new ones are more than {context_len} tokens."
            )
        wants_prompt = call.return_logprob and call.logprob_start_len >= 0
        for token_id in call.token_ids_logprob:
            if not 0 <= token_id < limits.vocab_size:
                raise EngineRejected(
                    f"token_ids_logprob contains out-of-vocabulary token id {token_id}; "
                    f"valid range is [0, {limits.vocab_size})."
                )
        _check_ranges(call)
        return cls(call, max_new_tokens, call.logprob_start_len if wants_prompt else num_prompt, adapter)

    @property
    def computed(self) -> int:
        return self.slot.length if self.slot is not None else 0

    @property
    def adapter_key(self) -> int:
        return self.adapter.key if self.adapter is not None else 0

    def version(self, base_version: int) -> int:
        """The version of what it is made by, while the base is `base_version`."""
        return self.adapter.version if self.adapter is not None else base_version

    @property
    def remaining(self) -> int:
        """Tokens that the model has not seen yet: 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def reuse_limit(self) -> int:
        """How many leading tokens may come from a cache: the last one, and those to be scored, must be computed."""
        limit = len(self.tokens) - 1
        return limit if self.is_prompt_scored else min(limit, self.score_start)

    @property
    def is_prompt_scored(self) -> bool:
        return len(self.input_logprobs) >= len(self.call.input_ids) - 1 - self.score_start

    def restart(self) -> None:
        """Its keys and values are gone. What was sampled stays; a half-scored prompt is scored anew."""
        if not self.is_prompt_scored:
            self.input_logprobs.clear()
            self.input_top.clear()
            self.input_chosen.clear()
        self.num_retractions += 1

    def append(self, token_id: int, logprob: float, version: int) -> None:
        """One more sampled token, made by weights `version`."""
        self.tokens.append(token_id)
        self.output_logprobs.append(logprob)
        self.output_ids.append(token_id)
        end = len(self.output_ids)
        extend_spans(self.spans, version, end - 1, end)

    def output(self, num_tokens: int, text: str, version: int) -> Output:
        """What the dialect says about the first `num_tokens` output tokens; `version` is what is served now."""
        call, is_over = self.call, self.finish_reason is not None and num_tokens == len(self.output_ids)
        scored = call.input_ids[self.score_start :]
        inputs = zip([None, *self.input_logprobs], scored, strict=False)
        num_rows = num_tokens if self.max_new_tokens else 1  # a request for no tokens still says what would come first
        return Output(
            prompt_tokens=len(call.input_ids),
            version=self._version_at(num_tokens, self.final_version if is_over else version),
            cached_tokens=self.cached_tokens,
            text=text,
            token_ids=self.output_ids[:num_tokens],
            logprobs=self.output_logprobs[:num_tokens],
            spans=self.spans if is_over else [],
            finish_reason=self.finish_reason if is_over else None,
            input_logprobs=[(logprob, token_id, None) for logprob, token_id in inputs],
            input_top=[None, *self.input_top] if scored else [],
            input_ids_logprobs=[None, *self.input_chosen] if scored else [],
            output_top=self.output_top[:num_rows],
            output_ids_logprobs=self.output_chosen[:num_rows],
        )

    def _version_at(self, num_tokens: int, otherwise: int) -> int:
        """The version that made the last of so many tokens, true even when newer weights came since."""
        made = [span.version for span in tuple(self.spans) if span.start < num_tokens]
        return made[-1] if made else otherwise


@dataclass(frozen=True, slots=True)
class Progress:
    """An event: the first `num_tokens` output tokens of a sequence are settled; with `finished`, it is over."""

    sequence: Sequence
    num_tokens: int
    finished: bool


def _check_ranges(call: GenerateCall) -> None:
    sampling = call.sampling
    for name, value, low, high in (
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0),
        ("presence_penalty", sampling.presence_penalty, -2.0, 2.0),
        ("repetition_penalty", sampling.repetition_penalty, 1e-6, 2.0),
        ("top_logprobs_num", call.top_logprobs_num, 0, 1 << 20),
        ("logprob_start_len", call.logprob_start_len, -1, 1 << 40),
    ):
        if not low <= value <= high:
            raise EngineRejected(f"{name} must be in [{low}, {high}], got {value}.")
    if call.max_new_tokens is not None and not 0 <= call.min_new_tokens <= call.max_new_tokens:
        raise EngineRejected(
            f"min_new_tokens must be in [0, max_new_tokens({call.max_new_tokens})], got {call.min_new_tokens}."
        )
    if sampling.seed is not None and type(sampling.seed) is not int:
        raise EngineRejected(f"sampling_seed must be an integer, got {sampling.seed!r}.")
