"""A relative output directory is one of the directory that the command was typed in, or the start is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slime.config.loader import resolve
from slime.config.sections import Config
from slime.errors import ConfigError

PACKAGE = Path("/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_3f0a")
JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"working_dir": "gcs://_ray_pkg_3f0a.zip"}})}
JOB_WITHOUT_PACKAGE = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {}})}
ABSOLUTE = ["--save-dir", "/data/save", "--run-dir", "/data/run", "--rl-buffer-dir", "/data/turns"]


def outputs(argv: list[str], environ: dict[str, str], cwd: Path) -> list[str]:
    """Save, run and buffer directory of a run that is told so."""
    config = resolve(argv, environ, cwd=cwd).config
    return [str(path) for path in (config.checkpoint.save_dir, config.monitor.run_dir, config.server.rl_buffer_dir)]


def test_they_lie_where_the_command_was_typed():
    found = outputs(["--save-dir", "./checkpoints/my-method", "--run-dir", "../runs"], {}, Path("/work/there"))
    assert found == ["/work/there/checkpoints/my-method", "/work/runs", "/work/there/rl_buffer"]


def test_they_lie_under_a_base_directory_if_one_is_named():
    argv = ["--base-dir", "/data", "--save-dir", "./checkpoints", "--rl-buffer-dir", "/elsewhere"]
    assert outputs(argv, {}, Path("/work")) == ["/data/checkpoints", "/data/runs/default", "/elsewhere"]
    assert outputs(["--base-dir", "sub"], {}, Path("/work"))[0] == "/work/sub/checkpoints"
    assert outputs([], {"OPENCLAW_RL_BASE_DIR": "/data"}, Path("/work"))[0] == "/data/checkpoints"


def test_a_run_on_recorded_conversations_keeps_its_turns_beside_its_logs():
    found = outputs(["--data-path", "sessions.jsonl", "--run-dir", "here"], {}, Path("/work"))
    assert found == ["/work/checkpoints", "/work/here", "/work/here/conversations"]


@pytest.mark.parametrize("environ", [JOB, JOB_WITHOUT_PACKAGE], ids=["package", "no package"])
def test_a_job_that_somebody_else_submitted_is_refused_in_one_line(environ: dict[str, str]):
    with pytest.raises(ConfigError) as raised:
        outputs(["--save-dir", "./checkpoints/my-method"], environ, PACKAGE)
    line = str(raised.value)
    assert "\n" not in line
    assert "--save-dir checkpoints/my-method" in line
    assert "--run-dir runs/default" in line, "what nobody named is written, too"
    assert 'add --base-dir "$PWD" to the command, or set OPENCLAW_RL_BASE_DIR' in line


@pytest.mark.parametrize("folder", [PACKAGE, PACKAGE / "openclaw-combine"])
def test_with_one_thing_added_such_a_job_writes_there(folder: Path):
    found = outputs(["--save-dir", "./checkpoints/my-method", "--base-dir", "/work"], JOB, folder)
    assert found == ["/work/checkpoints/my-method", "/work/runs/default", "/work/rl_buffer"]
    assert outputs([], JOB | {"OPENCLAW_RL_BASE_DIR": "/work"}, folder)[0] == "/work/checkpoints"


def test_a_job_with_absolute_directories_needs_nothing():
    assert outputs(ABSOLUTE, JOB, PACKAGE) == ["/data/save", "/data/run", "/data/turns"]


def test_a_job_that_was_sent_to_a_directory_knows_it():
    """launch.sh does so."""
    assert outputs([], JOB, Path("/work/typed/here"))[0] == "/work/typed/here/checkpoints"
    with pytest.raises(ConfigError, match="which a Ray job does not know"):
        outputs([], JOB_WITHOUT_PACKAGE, Path("/wherever/ray/was/started"))


def test_what_ray_deletes_with_the_session_is_refused():
    with pytest.raises(ConfigError, match=r"--save-dir .*_ray_pkg_3f0a/save: in Ray's copy"):
        outputs([*ABSOLUTE, "--save-dir", str(PACKAGE / "save")], JOB, PACKAGE)
    with pytest.raises(ConfigError, match="--base-dir sub: in a Ray job it must be an absolute directory"):
        outputs(["--base-dir", "sub"], JOB, PACKAGE)


def test_only_what_a_program_writes_is_looked_at():
    argv = ["--rl-buffer-dir", "/data/turns"]
    config = resolve(argv, JOB, sections=["model", "server", "output"], cwd=PACKAGE).config
    assert config.server.rl_buffer_dir == Path("/data/turns")


def test_without_a_current_directory_they_stay_as_they_were_written():
    assert resolve([], {}).config == Config()
