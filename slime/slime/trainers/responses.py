"""The response layout: a micro-batch as hooks written for slime see it, one tensor a sample.

    [N] one value a trainable token ─ by_response ─▶ a tensor a sample, [R] ─ trainable ─▶ [N]

A response begins at the first trainable token and ends with the last; tokens between that do not train have mask 0.
"""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from slime.data.rows import FlatBatch


def total_lengths(flat: FlatBatch) -> list[int]:
    """Tokens of each document up to its last trainable one, which is not fed."""
    return [length + 1 for length in flat.document_lens]


def response_lengths(flat: FlatBatch) -> list[int]:
    """Tokens from the first trainable one of each document to the last."""
    ends = accumulate(flat.document_lens)
    return [end - int(predictors[0]) for end, predictors in zip(ends, _predictors(flat), strict=True)]


def trainable(values: Tensor, flat: FlatBatch) -> Tensor:
    """From one value a response token to one a trainable token."""
    return values[_places(flat)]


def by_response(values: Tensor, flat: FlatBatch) -> list[Tensor]:
    """From one value a trainable token to one a response token, a tensor a sample; 0 where nothing trains."""
    lengths = response_lengths(flat)
    return list(torch.split(values.new_zeros(sum(lengths)).index_copy(0, _places(flat), values), lengths))


def _places(flat: FlatBatch) -> Tensor:
    """Where each trainable token stands among the responses laid end to end: [N]."""
    starts = [0, *accumulate(response_lengths(flat))][:-1]
    split = zip(_predictors(flat), starts, strict=True)
    return torch.cat([predictors - predictors[0] + start for predictors, start in split])


def _predictors(flat: FlatBatch) -> tuple[Tensor, ...]:
    return torch.split(flat.predictors, list(flat.counts))
