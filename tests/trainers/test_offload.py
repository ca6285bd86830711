"""Stepping on copies in CPU memory gives the parameters that stepping in place gives."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from learners import batch_of, parameters_of, random_samples, trainer_of
from slime.trainers.torch import optimizer


def test_offloading_changes_no_bit(policy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trainer_of(policy_dir)
    monkeypatch.setattr(optimizer, "offloads", lambda parameters, config: True)
    offloaded, resumed = trainer_of(policy_dir), trainer_of(policy_dir)
    for seed in range(3):
        batch = batch_of(random_samples(5, seed=seed))
        assert plain.train(batch) == offloaded.train(batch)
    resumed.load(offloaded.save(tmp_path))
    last = batch_of(random_samples(5, seed=3))
    for trainer in (plain, offloaded, resumed):
        trainer.train(last)
    one, *others = (parameters_of(trainer) for trainer in (plain, offloaded, resumed))
    assert all(torch.equal(other[name], value) for other in others for name, value in one.items())


def test_on_a_cpu_it_says_that_it_changes_nothing(policy_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        trainer = trainer_of(policy_dir, offload_optimizer_state=True)
    assert "offload_optimizer_state changes nothing" in caplog.text
    assert trainer._optimizer._stepped is trainer._optimizer.parameters
