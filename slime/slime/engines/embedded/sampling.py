"""From logits to tokens, for all rows of a step at once.

The log-probs that come out are a float32 log-softmax of the logits, penalties and temperature applied: those of the
distribution that was drawn from, unless top-k, top-p or min-p cut it or the row is greedy. Such rows report what they
would be without (greedy: at temperature 1), as SGLang does, and no trainer may take them for what was drawn from.

A token is drawn by inverting the cumulated probabilities, in float64, at one uniform number a token, and this number
is a hash of the request's seed and the token's place in the reply: a seeded request repeats itself whatever else is
in the batch, and through interruptions.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence

import torch

from slime.engines.dialect.requests import Sampling

_MASK64 = (1 << 64) - 1


class RowSampling:
    """How one row is sampled.

    Args:
        params: temperature 0 is greedy; a seed, drawn where there is none, decides a draw together with its place.
        output_ids: what the row has generated so far; it grows.
    """

    def __init__(self, params: Sampling, output_ids: Sequence[int]) -> None:
        self.params, self.output_ids = params, output_ids
        self.temperature = params.temperature
        self.seed = secrets.randbits(63) if params.sampling_seed is None else params.sampling_seed
        self.is_truncated = self.temperature > 0 and (params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0.0)
        penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self.is_penalised = penalties != (1.0, 0.0, 0.0)


def sample(logits: torch.Tensor, rows: Sequence[RowSampling]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    Args:
        logits: float32 `[rows, vocab]`; may be overwritten.

    Returns:
        ids `[rows]`, and log-probs `[rows, vocab]` before anything was cut off.
    """
    for index, row in enumerate(rows):
        if row.is_penalised and row.output_ids:
            _penalise(logits[index], row.params, row.output_ids)
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
                _truncate(drawn[index], row.params)
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


def _penalise(logits: torch.Tensor, params: Sampling, output_ids: Sequence[int]) -> None:
    """Penalties see generated tokens only, as SGLang's do."""
    counts = Counter(output_ids)
    ids = torch.tensor(list(counts), device=logits.device)
    times = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
    seen = logits[ids] - params.frequency_penalty * times - params.presence_penalty
    logits[ids] = torch.where(seen < 0, seen * params.repetition_penalty, seen / params.repetition_penalty)


def _truncate(logprobs: torch.Tensor, params: Sampling) -> None:
    """Keep the `top_k` likeliest, of them the fewest that reach `top_p`, of these what is above `min_p` × the best."""
    if 0 < params.top_k < logprobs.shape[-1]:
        weakest = logprobs.topk(params.top_k).values[-1]
        logprobs.masked_fill_(logprobs < weakest, float("-inf"))
    if params.top_p < 1.0:
        ordered, order = logprobs.softmax(-1).sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= params.top_p
        logprobs[order[beyond]] = float("-inf")
    if params.min_p > 0.0:
        probabilities = logprobs.exp()
        logprobs.masked_fill_(probabilities < params.min_p * probabilities.max(), float("-inf"))
