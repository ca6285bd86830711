"""From logits to tokens, for all rows of a step at once.

The log-probs that come out are a float32 log-softmax of the logits, penalties and temperature applied: those of the
distribution that was drawn from, unless top-k, top-p or min-p cut it or the row is greedy. Such rows report what they
would be without (greedy: at temperature 1), as SGLang does, and no trainer may take them for what was drawn from.

A token is drawn by inverting the cumulated probabilities, in float64, at one uniform number a token, and this number
is a hash of the request's seed and the token's place in the reply: a seeded request repeats itself whatever else is
in the batch, and through interruptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row is sampled.

    Attributes:
        temperature: 0 is greedy.
        seed: together with the place of the token it decides the draw.
        output_ids: what the row has generated so far; looked at by penalties only.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    output_ids: Sequence[int]

    @property
    def is_truncated(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0)

    @property
    def is_penalised(self) -> bool:
        return (
            self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        ) and len(self.output_ids) > 0


def sample(logits: torch.Tensor, rows: Sequence[RowSampling]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    Args:
        logits: float32 `[rows, vocab]`; may be overwritten.

    Returns:
        ids `[rows]`, and log-probs `[rows, vocab]` before anything was cut off.
    """
    for index, row in enumerate(rows):
        if row.is_penalised:
            _penalise(logits[index], row)
    if any(row.temperature not in (0.0, 1.0) for row in rows):
        temperatures = torch.tensor([row.temperature or 1.0 for row in rows], device=logits.device)
        logits = logits / temperatures[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    if all(row.temperature == 0.0 for row in rows):
        return logprobs.argmax(-1), logprobs
    drawn = logprobs
    if any(row.is_truncated for row in rows):
        drawn = logprobs.clone()
        for index, row in enumerate(rows):
            if row.is_truncated:
                _truncate(drawn[index], row)
    cumulated = drawn.exp().cumsum(-1, dtype=torch.float64)
    draws = torch.tensor([[uniform(row.seed, len(row.output_ids))] for row in rows], dtype=torch.float64)
    thresholds = draws.to(logits.device) * cumulated[:, -1:]
    ids = torch.searchsorted(cumulated, thresholds, right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
    if any(row.temperature == 0.0 for row in rows):
        greedy = torch.tensor([row.temperature == 0.0 for row in rows], device=logits.device)
        ids = torch.where(greedy, logprobs.argmax(-1), ids)
    return ids, logprobs


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1) with 53 random bits: SplitMix64 of the seed at this place (Steele, Lea & Flood 2014)."""
    state = (seed + (place + 1) * 0x9E3779B97F4A7C15) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return float(((state ^ (state >> 31)) >> 11) * 2.0**-53)


def _penalise(logits: torch.Tensor, row: RowSampling) -> None:
    """Penalties see generated tokens only, as SGLang's do."""
    counts = Counter(row.output_ids)
    ids = torch.tensor(list(counts), device=logits.device)
    times = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
    seen = logits[ids] - row.frequency_penalty * times - row.presence_penalty
    logits[ids] = torch.where(seen < 0, seen * row.repetition_penalty, seen / row.repetition_penalty)


def _truncate(logprobs: torch.Tensor, row: RowSampling) -> None:
    """Keep the `top_k` likeliest, of them the fewest that reach `top_p`, of these what is above `min_p` × the best."""
    if 0 < row.top_k < logprobs.shape[-1]:
        weakest = logprobs.topk(row.top_k).values[-1]
        logprobs.masked_fill_(logprobs < weakest, float("-inf"))
    if row.top_p < 1.0:
        ordered, order = logprobs.softmax(-1).sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= row.top_p
        logprobs[order[beyond]] = float("-inf")
    if row.min_p > 0.0:
        probabilities = logprobs.exp()
        logprobs.masked_fill_(probabilities < row.min_p * probabilities.max(), float("-inf"))
