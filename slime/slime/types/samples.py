"""What an update takes and reports: samples in groups, a batch of them, a report.

Sample ─▶ SampleGroup ─▶ Batch ─▶ TrainReport
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One flat token sequence with parallel streams; no prompt and response halves, a mask says what trains.

    >>> Sample(
    ...     token_ids=(11, 12, 13, 14, 15),
    ...     streams={"loss_mask": (0, 0, 1, 1, 1), "rollout_logprobs": (0.0, 0.0, -0.1, -0.7, -0.2),
    ...              "policy_versions": (-1, -1, 3, 3, 3)},
    ...     values={"reward": 1.0, "temperature": 1.0}, turn_ids=("t01",),
    ... )

    Attributes:
        token_ids: T ids; the prompt as it was fed, the reply as it was sampled.
        streams: token-level fields by name, each of length T; entry i is about token i, predicted from those before it.
        values: sample-level fields by name.
        turn_ids: every turn whose tokens are trained here; what an update consumed.
        trajectory_id: samples of one session or episode share it: averaged together, γ and λ act between their turns.
        source: where it comes from (a user, a task set); baselines are kept per source.
        ancestors: of each of `turn_ids`; empty or None where nobody knows, and the order of the batch counts.
    """

    token_ids: tuple[int, ...]
    streams: Mapping[str, Sequence[Any]]
    values: Mapping[str, float]
    turn_ids: tuple[str, ...]
    trajectory_id: str = ""
    source: str = ""
    ancestors: tuple[tuple[str, ...] | None, ...] = ()

    def __post_init__(self) -> None:
        for name, stream in self.streams.items():
            if len(stream) != len(self.token_ids):
                raise ValueError(f"stream {name!r} has {len(stream)} entries for {len(self.token_ids)} tokens")
        if "loss_mask" not in self.streams:
            raise ValueError("a sample needs a loss_mask stream")
        if self.streams["loss_mask"] and self.streams["loss_mask"][0]:
            raise ValueError("the first token has nothing before it and cannot be trained")

    @property
    def num_trainable_tokens(self) -> int:
        return sum(1 for flag in self.streams["loss_mask"] if flag)

    @property
    def trained_versions(self) -> frozenset[int]:
        """Every version that sampled a trained token, e.g. `{3, 4}`; 0, the model as given, where none is recorded."""
        versions = self.streams.get("policy_versions", ())
        mask = self.streams["loss_mask"]
        found = frozenset(v for v, flag in zip(versions, mask, strict=True) if flag) if versions else frozenset()
        return found or frozenset({0})


@dataclass(frozen=True, slots=True)
class SampleGroup:
    """Samples that are compared with each other (GRPO centring); one sample is a group of one."""

    group_id: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError(f"group {self.group_id!r} is empty")

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """Every turn that its samples train."""
        return tuple(turn_id for sample in self.samples for turn_id in sample.turn_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update consumes."""

    groups: tuple[SampleGroup, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        return tuple(sample for group in self.groups for sample in group.samples)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """Every turn consumed, in order, each once."""
        return tuple(dict.fromkeys(turn_id for group in self.groups for turn_id in group.turn_ids))

    def with_samples(self, samples: Iterable[Sample]) -> Batch:
        """The same groups with these samples in the place of theirs, in order."""
        rest = iter(samples)
        return Batch(tuple(replace(g, samples=tuple(islice(rest, len(g.samples)))) for g in self.groups))


@dataclass(frozen=True, slots=True)
class TrainReport:
    """What one update did.

    Attributes:
        step: number of updates made so far, this one included.
        skipped: why no update was applied (non-finite gradient, nothing to train); empty when one was.
        metrics: `loss/…` and `train/…` figures.
        left_out: by turn, why the samples of it could not be trained; the update was made without them.
    """

    step: int
    metrics: Mapping[str, float]
    skipped: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
