"""Flattening: samples become tensors that are laid end to end, over the tokens that train.

    Sample ─ fields ─▶ Row (ids to feed, streams over trainable tokens) ─ several ─▶ FlatBatch (end to end, no padding)

The field registry says what a stream's tensor looks like and what stands where a sample lacks it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slime.fields import Field, field, fields
from slime.types import Sample


@dataclass(frozen=True, slots=True)
class Row:
    """One sample, ready to be laid end to end with others.

    Attributes:
        token_ids: [T] what is fed: everything up to the last trainable token, which is itself only predicted.
        predictors: [n] positions whose output predicts a trainable token (one before it).
        targets: [n] ids of the trainable tokens.
        streams: field name → [n] (or [n, k]); sample-level values repeated.
    """

    token_ids: Tensor
    predictors: Tensor
    targets: Tensor
    streams: Mapping[str, Tensor]

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def num_trainable(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, slots=True)
class FlatBatch(Row):
    """Rows end to end: T tokens fed, N of their successors trained.

    >>> flatten([row_of_5_feeding_4, row_of_3_feeding_2]).document_lens
    (4, 2)

    Attributes:
        position_ids: [T]; positions start at 0 in every document.
        document_lens: lengths of the documents; nothing attends across their borders.
        counts: trainable tokens of each document; they sum to N.
    """

    position_ids: Tensor
    document_lens: tuple[int, ...]
    counts: tuple[int, ...]

    def to(self, device: torch.device) -> FlatBatch:
        """The same on another device."""
        tensors = ("token_ids", "position_ids", "predictors", "targets")
        moved = {name: getattr(self, name).to(device) for name in tensors}
        return replace(self, **moved, streams={name: stream.to(device) for name, stream in self.streams.items()})


def rows(samples: Sequence[Sample]) -> list[Row]:
    """A row for each sample. Every registered field is there for all of them; a `token_k` field that no sample has is
    there with k = 0.

    Raises:
        PluginError: a sample has a stream or value that is not registered.
    """
    used = {name for sample in samples for name in (*sample.streams, *sample.values)}
    declared = {name: field(name) for name in sorted(used)} | {f.name: f for f in fields()}
    widths = {name: _width(name, samples) for name, f in declared.items() if f.level == "token_k"}
    return [_row(sample, declared, widths) for sample in samples]


def flatten(rows: Sequence[Row]) -> FlatBatch:
    """Lay rows end to end."""
    lengths = tuple(row.length for row in rows)
    starts = itertools.accumulate(lengths[:-1], initial=0)
    return FlatBatch(
        token_ids=torch.cat([row.token_ids for row in rows]),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        document_lens=lengths,
        predictors=torch.cat([row.predictors + start for row, start in zip(rows, starts, strict=True)]),
        targets=torch.cat([row.targets for row in rows]),
        streams={name: torch.cat([row.streams[name] for row in rows]) for name in rows[0].streams},
        counts=tuple(row.num_trainable for row in rows),
    )


def _row(sample: Sample, declared: Mapping[str, Field], widths: Mapping[str, int]) -> Row:
    token_ids = torch.tensor(sample.token_ids, dtype=torch.int64)
    trainable = torch.tensor([bool(flag) for flag in sample.streams["loss_mask"]]).nonzero().flatten()
    length = int(trainable[-1]) if len(trainable) else 0
    return Row(
        token_ids=token_ids[:length],
        predictors=trainable - 1,
        targets=token_ids[trainable],
        streams={name: _stream(sample, f, trainable, widths.get(name)) for name, f in declared.items()},
    )


def _stream(sample: Sample, declared: Field, trainable: Tensor, width: int | None) -> Tensor:
    """A field over the sample's trainable tokens; its fill value where the sample lacks it."""
    dtype: torch.dtype = getattr(torch, declared.dtype)
    if declared.level == "sample":
        return torch.full((len(trainable),), sample.values.get(declared.name, declared.fill), dtype=dtype)
    stream = sample.streams.get(declared.name)
    if stream is None and declared.name == "has_teacher" and "teacher_logprobs" in sample.streams:
        return torch.ones(len(trainable), dtype=dtype)  # what brings a teacher's log-probs has a teacher
    if stream is None:
        shape = (len(trainable),) if width is None else (len(trainable), width)
        return torch.full(shape, declared.fill, dtype=dtype)
    if width is not None:  # only trainable tokens have a row of k; others may hold anything
        empty = [declared.fill] * width
        filled = [[*stream[i], *empty[len(stream[i]) :]] for i in trainable.tolist()]
        return torch.tensor(filled, dtype=dtype).reshape(len(trainable), width)
    return torch.tensor([stream[i] for i in trainable.tolist()], dtype=dtype)


def _width(name: str, samples: Sequence[Sample]) -> int:
    return max((len(row) for sample in samples for row in sample.streams.get(name, ())), default=0)
