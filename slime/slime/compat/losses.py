"""slime's way of calling a loss, `(args, batch, logits, sum_of_sample_mean)`, made from the values of ours.

There, a sample is a prompt and a response, and per-sample lists hold one entry a response token (`trainers.responses`).
Logits come divided by each sample's temperature, so `args.rollout_temperature` is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from slime.trainers.loss_values import LossValues
from slime.trainers.responses import by_response, response_lengths, total_lengths


def arguments(settings: Mapping[str, Any]) -> SimpleNamespace:
    """The settings as attributes."""
    return SimpleNamespace(**{**settings, "rollout_temperature": 1.0, "use_kl_loss": settings["kl_loss_coef"] > 0})


def batch(values: LossValues) -> dict[str, Any]:
    """slime's batch: lists with one entry a sample; `log_probs` are the policy's own, as they were before the batch."""
    flat = values.flat
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
    fed, targets = torch.split(flat.token_ids, list(flat.document_lens)), torch.split(flat.targets, list(flat.counts))
    ids = [torch.cat([document, trained[-1:]]) for document, trained in zip(fed, targets, strict=True)]
    return {
        **{name: by_response(stream, flat) for name, stream in streams.items()},
        "tokens": torch.cat(ids)[None],
        "unconcat_tokens": ids,
        "total_lengths": total_lengths(flat),
        "response_lengths": response_lengths(flat),
        "rewards": [float(rewards[0]) for rewards in torch.split(values["rewards"], list(flat.counts))],
    }


def logits(values: LossValues) -> Tensor:
    """Logits of every token of every document, [1, T + documents, V]: slime feeds the last token too, we do not, so a
    row of zeros stands for it; no loss reads what it predicts."""
    flat, head = values.flat, values.scored.policy_head
    counts = torch.tensor(flat.counts)
    first_of_document = torch.cat([counts.new_zeros(1), counts.cumsum(0)[:-1]])
    parts: list[Tensor] = []
    hidden = torch.split(values.scored.hidden, list(flat.document_lens))
    for part, first in zip(hidden, first_of_document.tolist(), strict=True):
        rows = head.project(part).float() / head.temperatures[first]
        parts += [rows, rows.new_zeros(1, rows.shape[1])]
    return torch.cat(parts)[None]
