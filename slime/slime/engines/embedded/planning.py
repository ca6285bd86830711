"""What the next step computes: every decoding row, and pieces of prompts within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from slime.engines.embedded.attention import Chunk, RaggedStep
from slime.engines.embedded.lora_layers import LiveAdapter, Spans
from slime.engines.embedded.sequence import Sequence
from slime.engines.embedded.slots import KVSlots

_STALL_S = 0.05
"""How long prompts may hold up as many sequences that are decoding."""

_STEP_S = 0.2
"""How long a step may be: aborts and pauses wait for its end too."""

_MIN_PIECE = 64
"""A prompt is not cut into smaller pieces than this: each costs an attention call over all that came before it."""

_CALL_COST = {"cpu": 256, "cuda": 32768}
"""What one more attention call costs, in tokens attended to (heads alike): measured, roughly."""


class ChunkBudget:
    """Learns what a prompt token costs here, and says how many fit a step."""

    def __init__(self, seconds_per_token: float = 4e-4) -> None:
        self._seconds_per_token = seconds_per_token

    def num_tokens(self, running: Items[Sequence]) -> int:
        num_decoding = sum(sequence.remaining == 1 for sequence in running)
        num_prompts = len(running) - num_decoding
        # A stream is held up for longer only by more others than there are streams.
        seconds = min(_STEP_S, _STALL_S * max(1.0, num_prompts / num_decoding)) if num_decoding else _STEP_S
        return max(_MIN_PIECE, min(8192, int(seconds / self._seconds_per_token)))

    @staticmethod
    def would_learn(num_tokens: int, num_chunk_tokens: int) -> bool:
        """Whether a step says anything about prompts: one that is mostly decoding does not."""
        return num_chunk_tokens * 2 >= num_tokens and num_chunk_tokens >= 16

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Take in what a step took."""
        self._seconds_per_token += 0.3 * (seconds / num_tokens - self._seconds_per_token)


@dataclass(slots=True)
class StepPlan:
    """A step, laid out flat.

    Attributes:
        ids: tokens to compute, those of decoding rows first; `positions` are theirs.
        keep: tokens whose logits are wanted: one for each of `sampled`, then those for scoring.
        sampled: sequences that get a token, in the order of `keep`.
        scoring: (sequence, positions) whose logits follow, to score the prompt tokens after them.
        scored_out: sequences that wanted no token and are done.
        computed: how many tokens each sequence got computed.
        adapted: tokens that pass through an adapter.
    """

    step: RaggedStep
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    keep: list[int] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    scoring: list[tuple[Sequence, range]] = field(default_factory=list)
    scored_out: list[Sequence] = field(default_factory=list)
    computed: list[tuple[Sequence, int]] = field(default_factory=list)
    adapted: dict[LiveAdapter, Spans] = field(default_factory=dict)
    num_chunk_tokens: int = 0


def plan_step(running: Items[Sequence], kv: KVSlots, budget: int, device_type: str) -> StepPlan:
    """Lay out the next step over the running sequences, which are in order of admission."""
    decoding: list[Sequence] = []
    prompts: list[Sequence] = []
    for sequence in running:
        is_decoding = sequence.remaining == 1 and sequence.max_new_tokens > 0
        (decoding if is_decoding else prompts).append(sequence)
    batched, apart = _split_rows(decoding, _CALL_COST.get(device_type, 256))
    lengths = [len(sequence.tokens) for sequence in batched]
    plan = StepPlan(
        RaggedStep(kv, [_index(sequence) for sequence in batched], lengths),
        ids=[sequence.tokens[-1] for sequence in batched],
        positions=[length - 1 for length in lengths],
        keep=list(range(len(batched))),
        sampled=batched,
        computed=[(sequence, 1) for sequence in batched],
    )
    for row, sequence in enumerate(batched):
        _note_adapter(plan, sequence, row, 1)
    scored: list[int] = []
    for sequence, count in [(sequence, 1) for sequence in apart] + _grant(prompts, budget):
        _add_chunk(plan, sequence, count, scored)
    plan.keep += scored
    return plan


def _add_chunk(plan: StepPlan, sequence: Sequence, count: int, scored: list[int]) -> None:
    """Compute a sequence's next `count` tokens; those whose logits score its prompt are added to `scored`."""
    start, first = sequence.computed, len(plan.ids)
    end = start + count
    _note_adapter(plan, sequence, first, count)
    plan.step.chunks.append(Chunk(first, count, _index(sequence), start))
    plan.ids.extend(sequence.tokens[start:end])
    plan.positions.extend(range(start, end))
    plan.computed.append((sequence, count))
    plan.num_chunk_tokens += count
    is_complete = end == len(sequence.tokens)
    wants_tokens = sequence.max_new_tokens > 0
    if is_complete and wants_tokens:
        plan.keep.append(first + count - 1)
        plan.sampled.append(sequence)
    elif is_complete:
        plan.scored_out.append(sequence)
    if not sequence.call.return_logprob:
        return
    # The last position says nothing about the prompt, but its rows are wanted when nothing is sampled there.
    last = len(sequence.call.input_ids) - (1 if wants_tokens else 0)
    positions = range(max(start, sequence.call.score_start), min(end, last))
    if not wants_tokens and is_complete and not positions:
        positions = range(end - 1, end)
    if positions and (not wants_tokens or not sequence.is_prompt_scored):
        plan.scoring.append((sequence, positions))
        scored.extend(first - start + position for position in positions)


def _note_adapter(plan: StepPlan, sequence: Sequence, first: int, count: int) -> None:
    """`count` tokens of the step, from `first` on, are this sequence's."""
    if sequence.adapter is not None:
        spans = plan.adapted.setdefault(sequence.adapter, [])
        start = spans.pop()[0] if spans and spans[-1][1] == first else first
        spans.append((start, first + count))


def _grant(prompts: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
    """Share the budget: half to the oldest, so that it gets done; the rest to the shortest first, for their latency."""
    if not prompts:
        return []
    oldest, others = prompts[0], sorted(prompts[1:], key=lambda sequence: sequence.remaining)
    counts = {oldest: min(oldest.remaining, max(budget // 2, _MIN_PIECE) if others else budget)}
    left = budget - counts[oldest]
    for sequence in others:
        count = min(sequence.remaining, left)
        if count >= min(sequence.remaining, _MIN_PIECE):
            counts[sequence] = count
            left -= count
    counts[oldest] += max(0, min(oldest.remaining - counts[oldest], left))
    return [(sequence, counts[sequence]) for sequence in prompts if sequence in counts]


def _split_rows(decoding: list[Sequence], call_cost: int) -> tuple[list[Sequence], list[Sequence]]:
    """Which rows to compute in one batched call, padded to the longest, and which ones apart.

    A batch costs (slots that it spans) × (its longest row); a row apart its own length and a call.
    """
    rows = sorted(decoding, key=_index)
    if len(rows) < 2:
        return [], rows
    width = _index(rows[-1]) + 1 - _index(rows[0])
    by_length = sorted(rows, key=lambda sequence: len(sequence.tokens))
    apart_cost = 0
    best, best_cost = len(rows), width * len(by_length[-1].tokens)
    for count in range(len(rows) - 1, -1, -1):
        apart_cost += len(by_length[count].tokens) + call_cost
        cost = apart_cost + (width * len(by_length[count - 1].tokens) if count else 0)
        if cost < best_cost:
            best, best_cost = count, cost
    apart = set(by_length[best:])
    return [row for row in rows if row not in apart], [row for row in rows if row in apart]


def _index(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot.index
