"""Checkpoints: weights, optimizer and random state from which training resumes bit for bit; nothing is a pickle.

    <save_dir>/checkpoint-7/    weights/               a weights or an adapter directory, in the type that is trained
                                optimizer.safetensors  moments and random state
                                state.json             the rest of TrainerState
                                manifest.json          every file above with its hash
    <save_dir>/checkpoint-latest ─▶ checkpoint-7
    <save_dir>/published/version-9/                    what engines load, in the type that they serve

The directory appears whole or not at all; the link moves to it afterwards; old ones are removed last, in a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from slime.errors import WeightsError
from slime.weights.directories import (
    MANIFEST_FILE,
    Manifest,
    atomic_directory,
    numbered,
    read_json,
    remove,
    verify_manifest,
    write_manifest,
)
from slime.weights.models import read_tensors

log = logging.getLogger(__name__)

LATEST = "checkpoint-latest"
WEIGHTS_DIR = "weights"
TENSORS_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
_KIND = "checkpoint"


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What is neither weights nor moments.

    >>> TrainerState(step=7, num_optimizer_steps=7, num_skipped=0, consumed={7: ("t41", "t42")})

    Attributes:
        step: updates made.
        consumed: by update, the turns it trained, of every update since the checkpoint before.
        baseline: of the moving average; see `MovingBaseline.state`.
        config: what it was trained with, for people.
        version: under which these weights, or else the last before them, were published; None in a checkpoint of
            before versions had a journal.
    """

    step: int
    num_optimizer_steps: int
    num_skipped: int
    consumed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    version: int | None = None


def write_checkpoint(
    save_dir: Path,
    state: TrainerState,
    *,
    write_weights: Callable[[Path, int], Manifest],
    tensors: Mapping[str, Tensor],
    keep: int,
) -> Path:
    """Write `checkpoint-<step>`, point `checkpoint-latest` to it, and remove all but the newest `keep`.

    Args:
        write_weights: writes what was trained as a directory, under the number of the step.

    Raises:
        WeightsError: the weights are not fit to be served; nothing has changed on disk then.
    """
    checkpoint = save_dir / f"{_KIND}-{state.step}"
    with atomic_directory(checkpoint) as partial_dir:
        write_weights(partial_dir / WEIGHTS_DIR, state.step)
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial_dir / TENSORS_FILE
        )
        (partial_dir / STATE_FILE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
        write_manifest(partial_dir, state.step)
    link = save_dir / f".{LATEST}.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(checkpoint.name)
    os.replace(link, save_dir / LATEST)  # in one step: readers see the old target or the new one
    older = [found for step, found in numbered(save_dir, _KIND).items() if step < state.step]
    remove(older[keep - 1 :], save_dir, _KIND)
    return checkpoint


def read_checkpoint(checkpoint: Path) -> tuple[TrainerState, dict[str, Tensor]]:
    """Verify a checkpoint and read all of it but the weights.

    Raises:
        WeightsError: it is incomplete or corrupt; the message names the newest good one beside it.
    """
    checkpoint = checkpoint.resolve()
    try:
        _verify(checkpoint)
        state = read_json(checkpoint / STATE_FILE, TrainerState, "a trainer's state")
        return state, read_tensors(checkpoint / TENSORS_FILE)
    except WeightsError as error:
        good = _good_before(checkpoint)
        advice = f"resume from {good}" if good else "there is no other good checkpoint beside it"
        raise WeightsError(f"{error}; {advice}") from None


def resumable_checkpoint(save_dir: Path) -> Path | None:
    """Where an unattended run goes on: what `checkpoint-latest` points to if that verifies, else the newest that does.

    Passing over a checkpoint loses the updates since the one before; the log says which and why.

    Raises:
        WeightsError: there are checkpoints, and none is good; starting over is for a person to decide.
    """
    link = save_dir / LATEST
    newest = link.resolve() if link.is_dir() else next(iter(numbered(save_dir, _KIND).values()), None)
    if newest is None:
        return None
    try:
        _verify(newest)
    except WeightsError as error:
        good = _good_before(newest)
        if good is None:
            raise WeightsError(f"{error}; there is no other good checkpoint in {save_dir}") from None
        log.error("checkpoint passed over error=%r resuming_from=%s", str(error), good)
        return good
    return newest


def _verify(checkpoint: Path) -> None:
    """Compare every file with the hash it was written with; a `WeightsError` names the first that differs."""
    if not checkpoint.is_dir():
        raise WeightsError(f"{checkpoint}: no such checkpoint")
    verify_manifest(checkpoint, STATE_FILE, TENSORS_FILE, f"{WEIGHTS_DIR}/{MANIFEST_FILE}")


def _good_before(checkpoint: Path) -> Path | None:
    """The newest checkpoint of an earlier step beside this one that verifies."""
    number = checkpoint.name.removeprefix(f"{_KIND}-")
    for step, earlier in numbered(checkpoint.parent, _KIND).items():
        if not number.isdecimal() or step < int(number):
            with contextlib.suppress(WeightsError):
                _verify(earlier)
                return earlier
    return None
