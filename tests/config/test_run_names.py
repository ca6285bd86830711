"""What a run is called where nobody named it, and what its figures and its log are called on other pages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from slime.config.checks.conditions import method_name
from slime.config.loader import resolve
from slime.monitor import Monitor, link_log, read_metrics
from slime.plugins.settings import plugin_settings


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "binary"),
        (["--method", "opd"], "opd"),
        (["--custom-loss-function-path", "/x/openclaw-combine/custom_loss_select.py"], "combine"),
        (["--custom-loss-function-path", "./my_method/custom_loss.py:clipped"], "my_method"),
    ],
)
def test_a_method_is_called_what_published_pages_call_it(flags, name):
    assert method_name(resolve(flags, {}).config) == name


def test_weights_and_biases_gets_the_name_the_settings_and_no_secret(tmp_path, monkeypatch):
    began: list[dict[str, Any]] = []
    wandb = ModuleType("wandb")
    wandb.init = lambda **given: began.append(given) or ModuleType("run")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = resolve(["--lr", "3e-6"], {"OPENCLAW_API_KEY": "hush"}).config
    Monitor(tmp_path, run_name="openclaw-rl-binary", use_wandb=True, settings=plugin_settings(config))
    (given,) = began
    assert (given["name"], given["config"]["lr"], given["mode"]) == ("openclaw-rl-binary", 3e-6, "offline")
    assert "hush" not in str(given)


def test_figures_stand_under_published_names_beside_ours(tmp_path):
    monitor = Monitor(tmp_path)
    monitor.record(1, {"train/grad_norm": 0.5, "train/learning_rate": 1e-6, "loss/binary_loss": 0.1, "loss/opd": 0.2})
    monitor.close()
    (entry,) = read_metrics(tmp_path)
    assert (entry["gradient/norm"], entry["learning_rate"], entry["train/grad_norm"]) == (0.5, 1e-6, 0.5)
    assert (entry["loss/binary"], entry["loss/opd"]) == (0.1, 0.2)


def test_the_published_place_of_the_log_leads_to_it(tmp_path):
    link = tmp_path / "logs/training.log"
    for run in ("first", "second"):
        log = tmp_path / run / "training.log"
        log.parent.mkdir()
        log.write_text(run)
        link_log(log, link)
        assert link.read_text() == run
    link.unlink()
    link.write_text("somebody's own")
    link_log(log, link)
    assert link.read_text() == "somebody's own"
    link_log(log, Path("/proc/logs/training.log"))  # where nothing can be written
