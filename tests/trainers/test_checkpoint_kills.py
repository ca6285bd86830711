"""`kill -9` before every single change that saving a checkpoint makes to the disk: what is found afterwards is good."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from learners import wait_for
from safetensors.torch import save_file
from slime.trainers.checkpoint import (
    WEIGHTS_DIR,
    TrainerState,
    read_checkpoint,
    resumable_checkpoint,
    write_checkpoint,
)
from slime.weights import directories
from slime.weights.directories import Manifest
from slime.weights.models import read_weights, write_weights

CHANGES = [(directories, "fsync"), (Path, "rename"), (Path, "symlink_to"), (os, "replace"), (shutil, "rmtree")]


@pytest.fixture
def base_dir(tmp_path: Path) -> Path:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    save_file({"w": torch.zeros(3, 3)}, base / "model.safetensors")
    return base


def writer(values: torch.Tensor, base_dir: Path) -> Callable[[Path, int], Manifest]:
    return lambda where, version: write_weights({"w": values}, where, version=version, template_dir=base_dir)


def write(save_dir: Path, base_dir: Path, step: int) -> None:
    """Checkpoint `step`, whose every number is `step`."""
    values = torch.full((3, 3), float(step))
    state = TrainerState(step, step, 0, consumed={step: (f"t{step}",)})
    write_checkpoint(
        save_dir,
        state,
        write_weights=writer(values, base_dir),
        tensors={"exp_avg.w": values},
        keep=1,
    )


def in_a_child_killed_before_change(number: int, action: Callable[[], None]) -> bool:
    """Run an action in a forked process that is killed before its change `number`; whether that change came."""
    child = os.fork()
    if child == 0:
        changes = iter(range(1 << 30))
        for owner, name in CHANGES:
            setattr(owner, name, killing(getattr(owner, name), changes, number))
        action()
        for thread in set(threading.enumerate()) - {threading.current_thread()}:
            thread.join(30)
        os._exit(0)
    deadline = time.monotonic() + 30
    while (waited := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    if os.WIFSIGNALED(waited[1]):
        assert os.WTERMSIG(waited[1]) == signal.SIGKILL
        assert time.monotonic() < deadline, "the child hung"
        return True
    assert os.WEXITSTATUS(waited[1]) == 0
    return False


def killing(change: Callable[..., Any], changes: Iterator[int], number: int) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        if next(changes) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*args, **kwargs)

    return counted


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "a step written before"])
def test_a_kill_at_any_change_leaves_a_good_checkpoint(base_dir: Path, tmp_path: Path, again: bool) -> None:
    found: list[int] = []
    number = 0
    while True:
        save_dir = tmp_path / f"killed-before-{number}"
        write(save_dir, base_dir, 1)
        if again:  # the run fell back to step 1 and makes step 2 once more
            write_checkpoint(
                save_dir,
                TrainerState(2, 2, 0),
                write_weights=writer(torch.full((3, 3), 9.0), base_dir),
                tensors={"exp_avg.w": torch.zeros(3, 3)},
                keep=2,
            )
        fired = in_a_child_killed_before_change(number, lambda save_dir=save_dir: write(save_dir, base_dir, 2))
        checkpoint = resumable_checkpoint(save_dir)
        assert checkpoint is not None, f"nothing to resume from after a kill before change {number}"
        state, _ = read_checkpoint(checkpoint)
        weights = read_weights(checkpoint / WEIGHTS_DIR)["w"]
        assert float(weights[0, 0]) == state.step or (again and float(weights[0, 0]) == 9.0)
        found.append(state.step)
        write(save_dir, base_dir, 3)  # and a later run goes on from there, over whatever was left
        assert resumable_checkpoint(save_dir) == save_dir / "checkpoint-3"
        wait_for(lambda save_dir=save_dir: names_in(save_dir) == ["checkpoint-3", "checkpoint-latest"])
        if not fired:
            break
        number += 1
    assert number > 15, "every change was met"
    assert found[-1] == 2
    assert found == sorted(found) or again
