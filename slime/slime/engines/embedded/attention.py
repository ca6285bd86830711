"""Attention over a flat step: tokens of many sequences in one row, keys and values in their slots.

transformers calls `ragged_attention` in every layer (it is registered as an attention implementation), with queries,
keys and values of all tokens of the step, `[1, heads, tokens, head_dim]`. The first `num_rows` tokens are decoding
rows, one token of a slot each, and are answered by one batched call over a contiguous range of slots; every further
chunk (part of a prompt, or a row too long for the batch) by a call of its own. Grouped queries are packed
along the query axis, so keys and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from slime.engines.embedded.slots import KVSlots

RAGGED = "openclaw_ragged"
"""The name under which transformers knows this attention."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `first` up to `first + count` of the step: positions `start` onward of the sequence in `slot`."""

    first: int
    count: int
    slot: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer attends with: its part of the cache, and the step's tokens, `[heads, tokens, head_dim]`."""

    keys: torch.Tensor
    values: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float | None
    window: int | None


@dataclass(slots=True)
class RaggedStep:
    """Where the tokens of one step belong.

    Attributes:
        kv: the cache that the step reads and extends.
        rows: slots of the decoding rows, ascending; row i is token i of the step.
        lengths: length of each of them, the new token included.
        chunks: everything else, in order.
    """

    kv: KVSlots
    rows: list[int]
    lengths: list[int]
    chunks: list[Chunk] = field(default_factory=list)
    _masks: dict[tuple[int, int | None], torch.Tensor | None] = field(default_factory=dict)
    _row_slots: torch.Tensor | None = None
    _row_positions: torch.Tensor | None = None

    def attend(self, layer: _Layer) -> torch.Tensor:
        """Attention output `[tokens, heads, head_dim]` of `[heads, tokens, head_dim]` queries."""
        parts = []
        if self.rows:
            parts.append(self._attend_rows(layer))
        for chunk in self.chunks:
            parts.append(self._attend_chunk(chunk, layer))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_rows(self, layer: _Layer) -> torch.Tensor:
        query, key, value = layer.query, layer.key, layer.value
        count, num_kv_heads = len(self.rows), key.shape[0]
        low, high, longest = self.rows[0], self.rows[-1] + 1, max(self.lengths)
        if self._row_slots is None or self._row_positions is None:
            self._row_slots = torch.tensor(self.rows, device=key.device)
            self._row_positions = torch.tensor(self.lengths, device=key.device) - 1
        layer.keys[self._row_slots, :, self._row_positions] = key[:, :count].transpose(0, 1)
        layer.values[self._row_slots, :, self._row_positions] = value[:, :count].transpose(0, 1)
        packed = query[:, :count].transpose(0, 1).reshape(count, num_kv_heads, -1, query.shape[-1])
        scattered = high - low != count
        if scattered:  # slots in between are not decoding: compute and ignore them
            spread = packed.new_zeros((high - low, *packed.shape[1:]))
            spread[self._row_slots - low] = packed
            packed = spread
        mask = self._row_mask(low, high, longest, layer.window, key)
        out = scaled_dot_product_attention(
            packed,
            layer.keys[low:high, :, :longest],
            layer.values[low:high, :, :longest],
            attn_mask=None if mask is None else mask.expand(-1, -1, packed.shape[2], -1),
            scale=layer.scale,
        )
        if scattered:
            out = out[self._row_slots - low]
        return out.reshape(count, -1, query.shape[-1])

    def _row_mask(
        self, low: int, high: int, longest: int, window: int | None, like: torch.Tensor
    ) -> torch.Tensor | None:
        """Additive `[rows, 1, 1, longest]`, made once a step and shared by the layers; None when nothing is hidden."""
        known = (-1, window)
        if known not in self._masks:
            if window is None and high - low == len(self.lengths) and min(self.lengths) == longest:
                self._masks[known] = None
            else:
                # A slot in between that does not decode attends to its first key, so that no row is all masked.
                ends = torch.ones(high - low, dtype=torch.long)
                ends[torch.tensor(self.rows) - low] = torch.tensor(self.lengths)
                self._masks[known] = _mask(ends.to(like.device), longest, window, like)[:, None, None]
        return self._masks[known]

    def _attend_chunk(self, chunk: Chunk, layer: _Layer) -> torch.Tensor:
        span = slice(chunk.first, chunk.first + chunk.count)
        layer.keys[chunk.slot, :, chunk.start : chunk.end] = layer.key[:, span]
        layer.values[chunk.slot, :, chunk.start : chunk.end] = layer.value[:, span]
        mine = layer.query[:, span]
        past_keys = layer.keys[chunk.slot, :, : chunk.end]
        past_values = layer.values[chunk.slot, :, : chunk.end]
        if chunk.start == 0 and (layer.window is None or chunk.end <= layer.window):
            out = scaled_dot_product_attention(
                mine[None], past_keys[None], past_values[None], is_causal=True, scale=layer.scale, enable_gqa=True
            )[0]
            return out.transpose(0, 1)
        num_kv_heads = layer.key.shape[0]
        group = mine.shape[0] // num_kv_heads
        packed = mine.reshape(num_kv_heads, group * chunk.count, -1)
        out = scaled_dot_product_attention(
            packed[None],
            past_keys[None],
            past_values[None],
            attn_mask=self._chunk_mask(chunk, group, layer.window, layer.key),
            scale=layer.scale,
        )[0]
        return out.reshape(mine.shape).transpose(0, 1)

    def _chunk_mask(self, chunk: Chunk, group: int, window: int | None, like: torch.Tensor) -> torch.Tensor | None:
        """Additive `[1, 1, group * count, end]`; None for a single token that sees everything."""
        if chunk.count == 1 and window is None:
            return None
        known = (chunk.first, window)
        if known not in self._masks:
            ends = torch.arange(chunk.start + 1, chunk.end + 1, device=like.device)
            self._masks[known] = _mask(ends, chunk.end, window, like).repeat(group, 1)[None, None]
        return self._masks[known]


def _mask(ends: torch.Tensor, length: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """Additive `[len(ends), length]`: row i sees the keys before `ends[i]`, of which the last `window`."""
    positions = torch.arange(length, device=like.device)
    hidden = positions >= ends[:, None]
    if window is not None:
        hidden |= positions < ends[:, None] - window
    return like.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    ragged: RaggedStep | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface; `ragged` is what the engine passed to the model's forward."""
    if ragged is None:
        raise ValueError(f"{type(module).__name__} does not hand its keyword arguments on to its attention")
    layer = module.layer_idx
    if not isinstance(layer, int):
        raise ValueError(f"{type(module).__name__} does not say which layer it is")
    cache = ragged.kv.keys[layer], ragged.kv.values[layer]
    return ragged.attend(_Layer(*cache, query[0], key[0], value[0], scaling, sliding_window))[None], None


AttentionInterface.register(RAGGED, ragged_attention)
