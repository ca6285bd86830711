"""Logs, keys, exports and the buffer: who may read them, and what clients cannot write into them."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from server_rig import StartRig
from slime.errors import ConfigError
from slime.monitor import Monitor, configure_logging
from slime.private_files import open_private, secret, write_private
from slime.store import Store
from typer.testing import CliRunner

from openclaw.cli import app as cli
from openclaw.server import gate_of


@pytest.fixture(autouse=True)
def _a_generous_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_every_file_of_a_run_is_its_owners_alone(tmp_path: Path) -> None:
    configure_logging("info", tmp_path / "run" / "logs" / "training.log")
    logging.getLogger("slime").info("hello")
    Monitor(tmp_path / "run").close()
    store = Store.open(tmp_path / "buffer")
    await store.check_writable()
    write_private(tmp_path / "keys" / "serving.json", "{}")
    for directory, _, files in os.walk(tmp_path):
        if Path(directory) != tmp_path:
            assert mode_of(Path(directory)) == 0o700, directory
        for name in files:
            assert mode_of(Path(directory) / name) == 0o600, name
    await store.close()
    assert (tmp_path / "run/logs/training.log").read_text().endswith("hello\n")


def test_an_export_is_its_owners_alone(tmp_path: Path) -> None:
    async def make_buffer() -> None:
        await Store.open(tmp_path / "buffer").close()

    asyncio.run(make_buffer())
    file = tmp_path / "talks.jsonl"
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "buffer"), "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert mode_of(file) == 0o600


async def test_a_file_that_was_open_to_others_is_closed_when_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "engine.log").touch(mode=0o666)
    open_private(tmp_path / "engine.log").close()
    assert mode_of(tmp_path / "engine.log") == 0o600
    await Store.open(tmp_path / "b").close()
    (tmp_path / "b/turns.sqlite3").chmod(0o644)
    await Store.open(tmp_path / "b").close()
    assert mode_of(tmp_path / "b/turns.sqlite3") == 0o600


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770, 0o702])
def test_a_buffer_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "buffer"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ConfigError, match=f"other users may write there.*chmod go-w {directory}"):
        Store.open(directory)
    assert list(directory.iterdir()) == []


async def test_a_database_that_is_a_link_is_refused(tmp_path: Path) -> None:
    await Store.open(tmp_path / "a").close()
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b/turns.sqlite3").symlink_to(tmp_path / "a/turns.sqlite3")
    with pytest.raises(ConfigError, match="symbolic link"):
        Store.open(tmp_path / "b")


def test_the_admin_key_is_drawn_once_and_a_file_that_others_can_read_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "admin.key"
    drawn = secret(file)
    assert len(drawn) >= 43
    assert secret(file) == drawn
    assert mode_of(file) == 0o600
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users can read this key"):
        secret(file)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="cannot be read"):
        secret(file)


def test_the_log_names_the_file_of_the_admin_key_and_never_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from slime.config.sections import ServerConfig

    with caplog.at_level("INFO"):
        gate_of(ServerConfig(enable_rl_intercept=True, rl_buffer_dir=tmp_path))
    assert str(tmp_path / "admin.key") in caplog.text
    assert (tmp_path / "admin.key").read_text().strip() not in caplog.text
    with pytest.raises(ConfigError, match="OPENCLAW_ADMIN_KEY equals OPENCLAW_API_KEY"):
        gate_of(ServerConfig(api_key="one", admin_key="one"))


async def test_what_clients_send_gets_into_no_line_of_the_log_whole_or_as_a_line_of_its_own(
    start: StartRig, tmp_path: Path
) -> None:
    configure_logging("debug", tmp_path / "server.log")
    rig = await start()
    long = "secret words " * 100_000
    forged = "%0A2026-01-01 00:00:00,000 INFO openclaw forged%1b[31m"
    assert (await rig.http.get(f"/{forged}")).status_code == 404
    answers = [
        await rig.chat(messages=[{"role": long, "content": "x"}]),
        await rig.chat(messages=[{"role": "user", "content": [{"type": long}]}]),
        await rig.chat(max_tokens=int("9" * 4000)),
        await rig.chat(chat_template_kwargs={long: 1}),
        await rig.chat(headers={"x-turn-type": "y" * 8000}),
        await rig.http.get("/" + "z" * 20_000),
        await rig.chat(messages=[{"role": "us\ner\x1b[2J", "content": "x"}]),
    ]
    assert {answer.status_code for answer in answers} <= {200, 400, 404}
    assert max(len(answer.content) for answer in answers) < 3_000, "errors echo the beginning, not the whole"
    logging.getLogger("openclaw.api.app").info("raw %s", "a\r\nb\x1b[31m" + long)
    try:
        raise RuntimeError(f"x\n2026-01-01 INFO openclaw forged\x1b[31m{long}")
    except RuntimeError:
        logging.getLogger("openclaw.api.app").exception("failed")
    lines = (tmp_path / "server.log").read_text(encoding="utf-8").split("\n")
    assert max(map(len, lines)) < 3_000
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert "\x1b" not in "".join(lines)
    assert "\r" not in "".join(lines)
