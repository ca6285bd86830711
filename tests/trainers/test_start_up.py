"""Settings of the trainer that a run finds wrong before anything starts, and the trainer that it builds of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from learners import batch_of, random_samples
from slime.config.checks import startup
from slime.config.loader import resolve
from slime.config.sections import Config
from slime.errors import ConfigError
from slime.trainers.build import build_trainer

from slime import preflight

WEIGH = "def custom_tis(*, pg_loss, loss_masks):\n    return pg_loss * 0.5, loss_masks, {'seen': pg_loss.detach()}\n"


def config(model_dir: Path, *flags: str) -> Config:
    return resolve(["--model-path", str(model_dir), "--kl-loss-coef", "0", *flags], {}).config


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--custom-tis-function-path", "{file}"], "--behaviour-correction decoupled"),
        (["--use-tis", "--custom-tis-function-path", "gone.py"], "--custom-tis-function-path gone.py: no such file"),
        (["--custom-pg-loss-reducer-function-path", "{file}:custom_tis"], "asks for 'pg_loss'"),
        (["--optimizer", "adamw8bit"], "--optimizer adamw8bit needs torchao"),
        (["--num-critic-only-steps", "3"], "--num-critic-only-steps needs --advantage-estimator ppo"),
    ],
)
def test_it_is_found_before_anything_starts(
    policy_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    monkeypatch.setattr(startup, "check_model_dir", lambda model_dir: None)  # a random policy has no chat template
    file = tmp_path / "inside.py"
    file.write_text(WEIGH)
    with pytest.raises(ConfigError, match=words):
        preflight.check(config(policy_dir, *(flag.format(file=file) for flag in flags)))


def test_the_trainer_of_a_configuration_calls_its_hooks(policy_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "inside.py"
    file.write_text(WEIGH)
    plain, hooked = (
        build_trainer(config(policy_dir, "--use-tis", "--tis-clip", "1e9", *flags)).train(batch_of(random_samples(4)))
        for flags in ([], ["--custom-tis-function-path", str(file)])
    )
    assert "train/seen" in hooked.metrics
    assert "train/seen" not in plain.metrics
    assert hooked.metrics["loss/policy"] == pytest.approx(0.5 * hooked.metrics["train/seen"])
