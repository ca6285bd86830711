"""GPUs that are asked for are there, or the start ends in one line. The machine is a `nvidia-smi` on the PATH."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slime.cluster.placement import Placement, on_cpu, place
from slime.config.gpus import check_gpus, present_gpus
from slime.config.loader import resolve
from slime.config.sections import ClusterConfig
from slime.errors import ConfigError

from slime import preflight

ROOT = Path(__file__).resolve().parents[2]
LINES = ["GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i}f3a-22)", "  MIG 1g.10gb Device 0: (UUID: MIG-{i}b-77)"]


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The environment of a machine with so many GPUs, the last of which is cut into instances if `has_mig`."""

    def made(number: int, *, has_mig: bool = False, **variables: str) -> dict[str, str]:
        listed = [LINES[0].format(i=i) for i in range(number)]
        listed += [LINES[1].format(i=number - 1)] if has_mig else []
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\ncat << 'END'\n" + "\n".join(listed) + "\nEND\n")
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:/usr/bin:/bin", **variables}

    return made


def look_at_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no model here."""
    monkeypatch.setattr(preflight, "check_startup", lambda config: None)
    monkeypatch.setattr(preflight, "warnings", lambda config: ())
    monkeypatch.setattr(preflight, "refuse_float16", lambda *what, **where: None)


def test_what_is_there(machine: Callable[..., dict[str, str]]):
    assert present_gpus(machine(2)) == ("0", "GPU-0f3a-22", "1", "GPU-1f3a-22")
    assert present_gpus(machine(1, has_mig=True)) == ("0", "GPU-0f3a-22", "MIG-0b-77")
    assert present_gpus(machine(0)) == ()
    assert present_gpus({"PATH": "/nowhere"}) == () or Path("/proc/driver/nvidia/gpus").is_dir()


def test_cuda_visible_devices_leaves_some_of_them(machine: Callable[..., dict[str, str]]):
    assert present_gpus(machine(4, CUDA_VISIBLE_DEVICES="2,3,9")) == ("2", "3")
    assert present_gpus(machine(4, CUDA_VISIBLE_DEVICES="")) == ()
    in_a_job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
    assert len(present_gpus(machine(4, CUDA_VISIBLE_DEVICES="", **in_a_job))) == 8, "Ray blanks it"


def test_gpus_that_are_there_may_be_asked_for_by_index_and_by_uuid(machine: Callable[..., dict[str, str]]):
    check_gpus({"--train-gpus": "0, 1", "--rollout-gpus": "GPU-2f"}, machine(3))
    check_gpus({"--train-gpus": "MIG-2b-77"}, machine(3, has_mig=True))
    check_gpus({"--train-gpus": ""}, machine(0))


@pytest.mark.parametrize(
    ("asked", "number", "variables", "words"),
    [
        ({"--train-gpus": "0,1,2,3"}, 2, {}, "--train-gpus 0,1,2,3: this machine has 2: 0,1; "),
        ({"--train-gpus": "0", "--rollout-gpus": "1"}, 1, {}, "--rollout-gpus 1: this machine has 1: 0; "),
        ({"--engine-gpus": "0"}, 0, {}, "--engine-gpus 0: this machine has no GPU; "),
        ({"--judge-gpus": "GPU-77"}, 1, {}, "--judge-gpus GPU-77: this machine has 1: 0; "),
        (
            {"--train-gpus": "0"},
            4,
            {"CUDA_VISIBLE_DEVICES": "2,3"},
            "--train-gpus 0: CUDA_VISIBLE_DEVICES=2,3 on this machine has 2: 2,3; ",
        ),
    ],
)
def test_gpus_that_are_not_there_end_the_start_in_one_line(
    machine: Callable[..., dict[str, str]], asked: dict[str, str], number: int, variables: dict[str, str], words: str
):
    with pytest.raises(ConfigError) as raised:
        check_gpus(asked, machine(number, **variables))
    assert str(raised.value).startswith(words)
    assert "--device cpu" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("flag", ["--train-gpus", "--rollout-gpus", "--judge-gpus", "--teacher-gpus", "--gpus"])
def test_a_run_checks_every_setting_that_names_gpus(
    machine: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, flag: str
):
    look_at_gpus_only(monkeypatch)
    monkeypatch.setenv("PATH", machine(2)["PATH"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    preflight.check(resolve([flag, "0,1"], {}).config)
    with pytest.raises(ConfigError, match="2,3: this machine has 2: 0,1"):
        preflight.check(resolve([flag, "2,3"], {}).config)


def test_on_the_cpu_their_numbers_only_count_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    look_at_gpus_only(monkeypatch)
    config = resolve(["--device", "cpu", "--train-gpus", "0,1", "--rollout-gpus", "2,3,4"], {}).config
    with caplog.at_level(logging.WARNING):
        plan = preflight.check(config)
    assert plan.placement == Placement(engines=("",) * 3, ranks=("",) * 2)
    assert "no GPU is used, their numbers only count: 2 trainer ranks, 3 engines" in caplog.text
    assert on_cpu(config).cluster.train_gpus == ""


def test_a_device_without_gpus_is_refused(monkeypatch: pytest.MonkeyPatch):
    look_at_gpus_only(monkeypatch)
    with pytest.raises(ConfigError, match="--device cuda: say which GPUs, --train-gpus and --rollout-gpus"):
        preflight.check(resolve(["--device", "cuda"], {}).config)


def test_the_servers_own_engine_asks_for_gpus_that_are_there(machine: Callable[..., dict[str, str]], tmp_path: Path):
    """`serve_model.py --gpu-ids`, before a port is bound or an engine is started."""
    command = [sys.executable, str(ROOT / "serve_model.py"), "--model-path", str(tmp_path), "--gpu-ids", "0,1"]
    environ = os.environ | machine(1)
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "error: --engine-gpus 0,1: this machine has 1: 0; " in done.stderr


# ── Engines beside the policy's ────────────────────────────────────────────────────────────────────────────────────


def cluster(**changes: Any) -> ClusterConfig:
    usual = ClusterConfig(train_gpus="0,1", rollout_gpus="2,3", num_train_ranks=2, num_engines=2)
    return replace(usual, **changes)


def test_a_judge_and_a_teacher_have_gpus_of_their_own_where_they_are_named():
    placed = place(cluster(judge_gpus="4,5", teacher_gpus="6"), has_judge=True, has_teacher=True)
    assert (placed.judge, placed.teacher) == ("4,5", "6")


def test_else_they_share_the_last_of_the_engines_and_that_is_said(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        placed = place(cluster(), has_judge=True, has_teacher=True)
    assert (placed.judge, placed.teacher) == ("3", "3")
    assert "the judge's engine shares GPU 3 with an engine of the policy; --judge-gpus gives it its own" in caplog.text
    assert "the teacher's engine shares GPU 3" in caplog.text


def test_they_never_have_a_trainers_gpu():
    assert place(cluster(rollout_gpus="2,1"), has_judge=True).judge == "2"
    with pytest.raises(ConfigError, match=r"all of --rollout-gpus are a trainer's.*give --judge-gpus"):
        place(cluster(rollout_gpus="0,1"), has_judge=True)
    with pytest.raises(ConfigError, match="--teacher-gpus 5,1: GPU 1 is a trainer's"):
        place(cluster(teacher_gpus="5,1"), has_teacher=True)
    assert place(cluster(rollout_gpus="", num_engines=1), has_judge=True).judge == "", "the CPU"


def test_gpus_for_an_engine_that_is_not_started_are_named(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert place(cluster(judge_gpus="5")).judge == ""
    assert "--judge-gpus 5 has no effect: no engine is started for a judge" in caplog.text
