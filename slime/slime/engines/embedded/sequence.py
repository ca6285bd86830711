"""One request on its way through the engine.

The engine loop alone writes to a sequence, but for the text of its output, which the HTTP side decodes. The HTTP side
may read what an event has announced: the first n sampled tokens are settled once an event has said n.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slime.engines.dialect.answers import Output
from slime.engines.dialect.requests import GenerateCall
from slime.engines.embedded.lora_layers import LiveAdapter
from slime.engines.embedded.sampling import RowSampling
from slime.engines.embedded.slots import Slot


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, what it has generated, and where its keys and values lie.

    Attributes:
        adapter: what its tokens pass through beside the base, from its first to its last; None = the base alone.
        is_probe: a health check, which does not wait for its turn.
        max_new_tokens: as the request says; asked at every token.
        tokens: prompt and output ids; the first `computed` of them have their keys and values in the slot.
    """

    call: GenerateCall
    adapter: LiveAdapter | None = None
    is_probe: bool = False
    max_new_tokens: int = field(init=False)
    tokens: list[int] = field(init=False)
    sampling: RowSampling = field(init=False)
    output: Output = field(default_factory=Output)
    slot: Slot | None = None
    num_retractions: int = 0

    def __post_init__(self) -> None:
        self.max_new_tokens = self.call.max_new_tokens
        self.tokens = list(self.call.input_ids)
        self.sampling = RowSampling(self.call.sampling_params, self.output.token_ids)

    @property
    def computed(self) -> int:
        return self.slot.length if self.slot is not None else 0

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
        return limit if self.is_prompt_scored else min(limit, self.call.score_start)

    @property
    def is_prompt_scored(self) -> bool:
        return len(self.output.input_logprobs) >= len(self.call.input_ids) - 1 - self.call.score_start

    def restart(self) -> None:
        """Its keys and values are gone. What was sampled stays; a half-scored prompt is scored anew."""
        if not self.is_prompt_scored:
            self.output.input_logprobs.clear()
            self.output.input_top.clear()
            self.output.input_chosen.clear()
        self.num_retractions += 1


@dataclass(frozen=True, slots=True)
class Progress:
    """An event: the first `num_tokens` output tokens of a sequence are settled; with `finished`, it is over."""

    sequence: Sequence
    num_tokens: int
    finished: bool
