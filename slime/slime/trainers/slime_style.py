"""slime's way of calling a loss, `(args, batch, logits, sum_of_sample_mean)`, made from ours.

There, a sample is a prompt and a response, and per-sample lists hold one entry a response token. Here the response
begins at the first trainable token and ends with the last; tokens between that do not train have mask 0.
Logits come divided by each sample's temperature, so `args.rollout_temperature` is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from slime.data.rows import FlatBatch
from slime.trainers.token_head import TokenHead


def arguments(settings: Mapping[str, Any]) -> SimpleNamespace:
    """The settings as attributes."""
    return SimpleNamespace(**{**settings, "rollout_temperature": 1.0, "use_kl_loss": settings["kl_loss_coef"] > 0})


def batch(values: Mapping[str, Any], flat: FlatBatch) -> dict[str, Any]:
    """slime's batch: lists with one entry a sample; `log_probs` are the policy's own, as they were before the batch.

    Args:
        values: by the names that a loss may ask for, over the trainable tokens of `flat`.
    """
    streams = {
        "log_probs": values["proximal_logprobs"],
        "ref_log_probs": values["reference_logprobs"],
        "rollout_log_probs": values["rollout_logprobs"],
        "teacher_log_probs": values["tempered_teacher_logprobs"].detach(),
        "advantages": values["advantages"],
        "returns": values["returns"],
        "values": values["old_values"],
        "loss_masks": torch.ones_like(values["advantages"]),
    }
    ids = [torch.cat([fed, targets[-1:]]) for fed, targets, _ in _documents(flat)]
    return {
        **{name: by_response(stream, flat) for name, stream in streams.items()},
        "tokens": torch.cat(ids)[None],
        "unconcat_tokens": ids,
        "total_lengths": total_lengths(flat),
        "response_lengths": response_lengths(flat),
        "rewards": [float(rewards[0]) for rewards in torch.split(values["rewards"], list(flat.counts))],
    }


def logits(head: TokenHead, hidden: Tensor, flat: FlatBatch) -> Tensor:
    """Logits of every token of every document, [1, T + documents, V]: slime feeds the last token too, we do not,
    so a row of zeros stands for it; nobody reads what it predicts."""
    counts = torch.tensor(flat.counts)
    first_of_document = torch.cat([counts.new_zeros(1), counts.cumsum(0)[:-1]])
    parts: list[Tensor] = []
    for part, first in zip(torch.split(hidden, list(flat.document_lens)), first_of_document.tolist(), strict=True):
        rows = head.project(part).float() / head.temperatures[first]
        parts += [rows, rows.new_zeros(1, rows.shape[1])]
    return torch.cat(parts)[None]


def total_lengths(flat: FlatBatch) -> list[int]:
    """Tokens of each document up to its last trainable one, which is not fed."""
    return [length + 1 for length in flat.document_lens]


def response_lengths(flat: FlatBatch) -> list[int]:
    """Tokens from the first trainable one of each document to the last."""
    return [len(fed) - int(predictors[0]) for fed, _, predictors in _documents(flat)]


def trainable(values: Tensor, flat: FlatBatch) -> Tensor:
    """From one value a response token to one a trainable token."""
    responses = torch.split(values, response_lengths(flat))
    return torch.cat(
        [r[predictors - predictors[0]] for r, (_, _, predictors) in zip(responses, _documents(flat), strict=True)]
    )


def by_response(values: Tensor, flat: FlatBatch) -> list[Tensor]:
    """From one value a trainable token to one a response token, a tensor a sample; 0 where nothing trains."""
    parts = torch.split(values, list(flat.counts))
    responses: list[Tensor] = []
    for part, (_, _, predictors), length in zip(parts, _documents(flat), response_lengths(flat), strict=True):
        responses.append(part.new_zeros(length).index_copy(0, predictors - predictors[0], part))
    return responses


def _documents(flat: FlatBatch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
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
