"""A micro-batch by responses: the layout in which hooks written for slime see tensors.

    [N] one value a trainable token ─ by_response ─▶ a tensor a sample, [R] ─ trainable ─▶ [N]

A response begins at the first trainable token and ends with the last; tokens between that do not train have mask 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from slime.data.rows import FlatBatch


def total_lengths(flat: FlatBatch) -> list[int]:
    """Tokens of each document up to its last trainable one, which is not fed."""
    return [length + 1 for length in flat.document_lens]


def response_lengths(flat: FlatBatch) -> list[int]:
    """Tokens from the first trainable one of each document to the last."""
    return [len(fed) - int(predictors[0]) for fed, _, predictors in documents(flat)]


def trainable(values: Tensor, flat: FlatBatch) -> Tensor:
    """From one value a response token to one a trainable token."""
    responses = torch.split(values, response_lengths(flat))
    return torch.cat(
        [r[predictors - predictors[0]] for r, (_, _, predictors) in zip(responses, documents(flat), strict=True)]
    )


def by_response(values: Tensor, flat: FlatBatch) -> list[Tensor]:
    """From one value a trainable token to one a response token, a tensor a sample; 0 where nothing trains."""
    parts = torch.split(values, list(flat.counts))
    responses: list[Tensor] = []
    for part, (_, _, predictors), length in zip(parts, documents(flat), response_lengths(flat), strict=True):
        responses.append(part.new_zeros(length).index_copy(0, predictors - predictors[0], part))
    return responses


def documents(flat: FlatBatch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(fed ids, trainable ids, positions that predict them) of each document."""
    start = 0
    counts = list(flat.counts)
    for fed, targets, predictors in zip(
        torch.split(flat.token_ids, list(flat.document_lens)),
        torch.split(flat.targets, counts),
        torch.split(flat.predictors, counts),
        strict=True,
    ):
        yield fed, targets, predictors - start
        start += len(fed)
