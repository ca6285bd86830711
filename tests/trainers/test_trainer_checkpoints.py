"""Checkpoints: bit for bit the run that was not stopped, whole or refused, and never more than were asked for."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import torch
from learners import batch_of, parameters_of, random_samples, trainer_of, wait_for, write_policy
from slime.errors import WeightsError
from slime.protocols import Resumed
from slime.weights.directories import read_manifest
from slime.weights.models import read_weights, verify_weights

SETTINGS = {"lr_warmup_steps": 4, "loss": {"entropy_coef": 0.01}}


def batches(start: int, end: int):
    return [batch_of(random_samples(5, seed=seed)) for seed in range(start, end)]


def test_a_resumed_run_is_bit_for_bit_the_one_that_went_on(policy_dir: Path, tmp_path: Path) -> None:
    steady = trainer_of(policy_dir, **SETTINGS)
    for batch in batches(0, 3):
        steady.train(batch)
    steady.save(tmp_path / "stopped")
    reports = [steady.train(batch) for batch in batches(3, 6)]
    steady.save(tmp_path / "steady")

    torch.manual_seed(999)
    resumed = trainer_of(policy_dir, **SETTINGS)
    assert resumed.load(tmp_path / "stopped" / "checkpoint-latest") == 3
    assert [resumed.train(batch) for batch in batches(3, 6)] == reports
    resumed.consumed = {step: ids for step, ids in resumed.consumed.items() if step > 3}
    resumed.save(tmp_path / "resumed")
    one, other = (read_manifest(tmp_path / name / "checkpoint-6") for name in ("steady", "resumed"))
    assert one.files == other.files, "every file, moments, random state and weights, has the same hash"


def test_what_a_checkpoint_consumed_is_known_after_a_restart(policy_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_of(policy_dir)
    for batch in batches(0, 2):
        trainer.train(batch)
    trainer.save(tmp_path)
    trainer.train(batches(2, 3)[0])
    trainer.save(tmp_path)
    turn_ids = tuple(f"turn{i}" for i in range(5))
    for step, consumed in ((2, {1: turn_ids, 2: turn_ids}), (3, {3: turn_ids})):
        fresh = trainer_of(policy_dir)
        fresh.load(tmp_path / f"checkpoint-{step}")
        assert fresh.consumed == consumed


def test_a_checkpoint_holds_weights_that_engines_load_and_no_pickle(policy_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_of(policy_dir)
    trainer.train(batches(0, 1)[0])
    checkpoint = trainer.save(tmp_path)
    assert checkpoint == tmp_path / "checkpoint-1"
    assert verify_weights(checkpoint / "weights").version == 1
    published = read_weights(checkpoint / "weights")
    parameters = parameters_of(trainer)
    assert all(torch.equal(tensor, parameters[name]) for name, tensor in published.items())
    files = {path.suffix for path in checkpoint.rglob("*") if path.is_file()}
    assert files == {".json", ".safetensors"}
    assert json.loads((checkpoint / "state.json").read_text())["config"]["trainer"]["lr"] == 1e-2


def test_only_the_newest_are_kept_and_the_link_points_to_the_last(policy_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_of(policy_dir, keep_checkpoints=2)
    for batch in batches(0, 4):
        trainer.train(batch)
        trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["checkpoint-3", "checkpoint-4", "checkpoint-latest"]
    assert os.readlink(tmp_path / "checkpoint-latest") == "checkpoint-4"
    wait_for(lambda: not list(tmp_path.glob(".*")))


@pytest.fixture
def two_checkpoints(policy_dir: Path, tmp_path: Path) -> Path:
    trainer = trainer_of(policy_dir)
    for batch in batches(0, 2):
        trainer.train(batch)
        trainer.save(tmp_path)
    return tmp_path


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda c: flip_a_byte(c / "weights" / "model.safetensors"), "weights/model.safetensors is corrupt"),
        (lambda c: flip_a_byte(c / "optimizer.safetensors"), "optimizer.safetensors is corrupt"),
        (lambda c: (c / "state.json").unlink(), "state.json is missing"),
        (lambda c: (c / "manifest.json").unlink(), "no manifest.json"),
    ],
)
def test_a_corrupt_checkpoint_is_refused_and_the_last_good_one_named(
    policy_dir: Path, two_checkpoints: Path, damage, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(two_checkpoints / "checkpoint-2")
    trainer = trainer_of(policy_dir)
    before = parameters_of(trainer)
    with pytest.raises(WeightsError) as caught:
        trainer.load(two_checkpoints / "checkpoint-latest")
    assert complaint in str(caught.value)
    assert str(caught.value).endswith(f"resume from {two_checkpoints / 'checkpoint-1'}")
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in parameters_of(trainer).items())
    with caplog.at_level(logging.ERROR):
        resumed = trainer.resume(two_checkpoints)
    assert resumed.step == 1
    assert resumed.checkpoint == two_checkpoints / "checkpoint-1"
    assert "checkpoint passed over" in caplog.text


def test_starting_over_when_every_checkpoint_is_bad_is_for_a_person_to_decide(
    policy_dir: Path, two_checkpoints: Path
) -> None:
    for step in (1, 2):
        (two_checkpoints / f"checkpoint-{step}" / "state.json").unlink()
    with pytest.raises(WeightsError, match="there is no other good checkpoint"):
        trainer_of(policy_dir).resume(two_checkpoints)


def test_where_a_run_begins(policy_dir: Path, two_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    def resumed(wanted: str = "auto", save_dir: Path = two_checkpoints) -> Resumed:
        return trainer_of(policy_dir).resume(save_dir, wanted)

    assert resumed().step == 2
    assert resumed("none").step == 0
    assert resumed(str(two_checkpoints / "checkpoint-1")).step == 1
    assert resumed(save_dir=tmp_path_factory.mktemp("empty")).checkpoint is None
    with pytest.raises(WeightsError, match="no such checkpoint"):
        resumed(str(two_checkpoints / "checkpoint-9"))


def test_a_checkpoint_of_another_model_is_refused(two_checkpoints: Path, tmp_path_factory) -> None:
    other = write_policy(tmp_path_factory.mktemp("other"), hidden_size=48)
    with pytest.raises(WeightsError, match="another model"):
        trainer_of(other).load(two_checkpoints / "checkpoint-2")


def test_weights_that_are_not_finite_are_not_published(policy_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_of(policy_dir)
    with torch.no_grad():
        next(trainer._policy.model.parameters())[0, 0] = float("inf")
    with pytest.raises(WeightsError, match="not finite"):
        trainer.save(tmp_path)
    assert not list(tmp_path.glob("*checkpoint*"))
