"""Looking at a rollout changes nothing that is stored, and shows what it would train."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from openclaw_combine import custom_rollout as combine
from openclaw_combine.utils import inspect_sessions
from openclaw_opd import custom_rollout as opd
from slime.errors import ConfigError
from slime.store import Store
from slime.tools.inspection import main
from slime.types import TurnKind
from test_pipeline import turn


@pytest.fixture
def buffer_dir(tmp_path: Path) -> Path:
    """Turns that were liked, disliked with a wish, disliked without, left alone; and a housekeeping one."""
    said = {
        "liked": "Thanks!",
        "wished": "I don't like it. Without bold, please.",
        "wrong": "That is wrong. Try again.",
    }

    async def fill() -> None:
        async with Store.open(tmp_path / "buffer") as store:
            for name in (*said, "silent"):
                await store.append(turn(name))
            for name, text in said.items():
                await store.attach(name, [{"role": "user", "content": text}])
            await store.append(turn("title", kind=TurnKind.SIDE))

    asyncio.run(fill())
    return tmp_path / "buffer"


def show(method, folder: Path, buffer_dir: Path, *flags: str) -> dict[str, dict]:  # type: ignore[no-untyped-def]
    arguments = ["--output-dir", str(folder / "shown"), "--rl-buffer-dir", str(buffer_dir), *flags]
    assert main(method.generate_rollout, "test", arguments) == 0
    shown = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "shown").glob("*.json"))]
    return {sample["turn_id"]: sample for sample in shown}


def test_what_a_rollout_makes_of_stored_turns_is_shown(buffer_dir: Path, tmp_path: Path, capsys):
    samples = show(combine, tmp_path, buffer_dir)
    assert {name: sample["reward"] for name, sample in samples.items()} == {"liked": 1, "wished": -1, "wrong": -1}
    assert samples["liked"]["token_ids"] == [1, 2, 3, 7, 8]
    assert samples["liked"]["streams"]["loss_mask"] == [0, 0, 0, 1, 1]
    assert {sample["taught"] for sample in samples.values()} == {0}, "there is no engine to teach"
    assert show(opd, tmp_path / "opd", buffer_dir) == {}
    assert "no sample   turn=wished no teacher: nobody to ask" in capsys.readouterr().out
    assert len(show(combine, tmp_path / "few", buffer_dir, "--num-samples", "1")) == 1


def test_looking_changes_nothing_and_sessions_say_what_they_hold(buffer_dir: Path, tmp_path: Path, capsys):
    before = inspect_sessions(buffer_dir)
    show(combine, tmp_path, buffer_dir)
    assert inspect_sessions(buffer_dir) == before
    [liked], [title] = before["sessionliked"], before["sessiontitle"]
    assert (liked["type"], liked["state"], liked["score"], liked["request"]) == ("main", "ready", None, "ask liked")
    assert title["type"] == "side"
    assert "sessionliked  1 turns" in capsys.readouterr().out


def test_a_folder_without_turns_is_one_line(tmp_path: Path, capsys):
    with pytest.raises(ConfigError, match="no turns are stored there"):
        inspect_sessions(tmp_path)
    assert main(combine.generate_rollout, "test", ["--rl-buffer-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("test: error: ")
