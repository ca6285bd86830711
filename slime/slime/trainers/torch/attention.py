"""Document attention for sequence packing: each document attends to itself only, and nothing is padded.

Registered with transformers under the name `documents`, so that any model which takes its attention from
there can be fed a flat batch. The lengths travel as the keyword `document_lens` of the model's forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from slime.errors import TrainerError

DOCUMENTS = "documents"


def document_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    document_lens: tuple[int, ...] | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each document.

    Args:
        query, key, value: [1, heads, T, head size]; keys and values may have fewer heads.
        attention_mask: not looked at; the documents say it all.
        document_lens: lengths that sum to T.

    Returns:
        [1, T, heads, head size], and no attention weights.

    Raises:
        TrainerError: the model asks for attention of another kind (soft caps, sinks).
    """
    for name in ("softcap", "s_aux", "position_bias"):
        if unused.get(name) is not None:
            raise TrainerError(f"attention with {name} cannot be computed document by document")
    lengths = list(document_lens or (query.shape[2],))
    is_grouped = key.shape[1] != query.shape[1]
    attended = [
        scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=(mask := _window_mask(q, sliding_window)),
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=is_grouped,
        )
        # One split for all documents: slices would each send back a gradient as long as the batch.
        for q, k, v in zip(*(torch.split(tensor, lengths, dim=2) for tensor in (query, key, value)), strict=True)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(DOCUMENTS, document_attention)


def _window_mask(query: Tensor, sliding_window: int | None) -> Tensor | None:
    """Which keys each query sees where a window is shorter than the document: itself and those just before it."""
    if sliding_window is None or query.shape[2] <= sliding_window:
        return None
    position = torch.arange(query.shape[2], device=query.device)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & (distance < sliding_window)
