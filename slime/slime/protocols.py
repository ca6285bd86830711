"""The protocols between the loops: two to four methods each, so that a second implementation is a small file.

Scripted implementations (`engines.scripted`, `judging.scripted`, `tests/scripted_learner.py`) stand in for models in
tests and demos; there are no mocks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from slime.types import Batch, Completion, SampleGroup, SamplingParams, TrainReport, Turn, Verdict, VersionSpan


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Ask an engine to continue `prompt_ids`.

    Attributes:
        request_id: unique; names the request when it is aborted.
        adapter: whose adapter is to answer, e.g. `policy`: its newest version, or the base while it has none;
            empty = the base.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What became known since the last delta of a stream.

    Attributes:
        version: the version being served when the delta left the engine: for showing, not for training.
        finish_reason: None until the last delta.
        spans: on the last delta only: which version made which tokens of the whole reply.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    version: int
    finish_reason: str | None = None
    spans: tuple[VersionSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probs of given tokens under the current weights.

    Attributes:
        logprobs: entry i is log p(token_ids[start + i] | token_ids[:start + i]), in float32.
        top_ids, top_logprobs: the k most likely ids at the same positions; empty when k is 0.
        version: the policy version that scored.
    """

    logprobs: tuple[float, ...]
    version: int
    top_ids: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()


@runtime_checkable
class Engine(Protocol):
    """An engine generates. Errors: `EngineUnavailable` (try later), `EngineRejected` (do not)."""

    async def generate(self, request: GenerateRequest) -> Completion: ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Deltas as they are sampled; closing the iterator early aborts the request in the engine."""
        ...

    async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> TokenScores:
        """Log-probs of the tokens from `start` on; `adapter` is whose are asked for, as in a `GenerateRequest`."""
        ...

    async def update_weights(self, weights_dir: Path, version: int) -> None:
        """Serve `weights_dir` as `version`; requests under way go on, and no token is mislabelled."""
        ...


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a trainer stands after loading.

    Attributes:
        consumed: the turns that the updates since the checkpoint before it consumed, by the step that did.
        checkpoint: where it was loaded from; None at step 0, where it is the model as given.
        version: under which the checkpoint's weights, or the last before them, were published; None if it does not say.
        users: with adapters for each user, each one's own step and version, by name.
    """

    step: int
    consumed: dict[int, tuple[str, ...]]
    checkpoint: Path | None = None
    version: int | None = 0
    users: dict[str, tuple[int, int | None]] = field(default_factory=dict)


@runtime_checkable
class Trainer(Protocol):
    """One rank of a trainer. Every rank is called with the same arguments; `--trainer` says whose ranks they are.

    `trainers.build` makes it. A `TrainerError` leaves it as it was before the call.
    """

    def resume(self, save_dir: Path, wanted: str = "auto") -> Resumed:
        """Load a checkpoint and say where that leaves the trainer.

        Args:
            wanted: `auto`: the newest good one in `save_dir`, step 0 where there is none; a checkpoint's directory; or
                `none`: step 0.
        """
        ...

    def train(self, batch: Batch) -> TrainReport:
        """Make one update from the whole batch, or none and the reason; a batch is never half applied."""
        ...

    def publish(self, weights_dir: Path, version: int, adapter: str = "") -> Path:
        """Write the weights alone, in the type that engines serve, atomically; returns the directory.

        Args:
            adapter: whose, where each user has weights of their own.
        """
        ...

    def save(self, checkpoint_dir: Path) -> Path:
        """Write `checkpoint-<step>` under the directory given, atomically; returns the checkpoint."""
        ...


class Learner(Protocol):
    """A `Trainer` as the pipeline drives it: all its ranks together, in directories that it knows.

    Every call may raise `TrainerError`.
    """

    async def resume(self) -> Resumed:
        """(Re)start the ranks at the newest good checkpoint."""
        ...

    async def train(self, batch: Batch) -> TrainReport: ...

    async def publish(self, version: int, adapter: str = "") -> Path: ...

    async def save(self) -> Path: ...


class Rollout(Protocol):
    """Makes samples. Only `stream` has to be written: a subclass inherits the rest, which does nothing."""

    def stream(self) -> AsyncGenerator[SampleGroup]:
        """Groups to train on, opened once. Its end means that there is no more data: what was given is trained, a
        checkpoint is saved, and the run has ended well."""
        ...

    def left_out(self) -> Mapping[str, int]:
        """Samples that were made and will never be trained, since the start, by reason; turns are counted in the
        store instead."""
        return {}

    async def updated(self, step: int) -> Mapping[str, float]:
        """Update `step` was made, and is served if it is due; returns figures to record with it."""
        return {}

    async def saved(self, step: int, group_ids: tuple[str, ...]) -> None:
        """The checkpoint of `step` is written, and it is the first to hold these groups."""
        return


@runtime_checkable
class Judge(Protocol):
    """A judge judges. A judge that cannot gives a verdict without a score; it does not raise."""

    async def judge(self, turn: Turn) -> Verdict: ...
