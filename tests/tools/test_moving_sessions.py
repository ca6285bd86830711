"""`openclaw-rl export` and `import`, as somebody types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slime.store import Store
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan

SAID = {"role": "user", "content": "hello"}


def openclaw_rl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def turn(name: str) -> Turn:
    return Turn(
        turn_id=name,
        session_id=f"session {name}",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=(SAID,),
        prompt_ids=(1, 2),
        completion=Completion((3, 4), (-0.25, -1 / 3), "hi", "stop", (VersionSpan(0, 0, 2),)),
        sampling=SamplingParams(),
        reply={"role": "assistant", "content": "hi"},
    )


async def test_out_of_one_buffer_and_into_another(tmp_path: Path):
    async with Store.open(tmp_path / "here") as store:
        await store.append(turn("a"))
        await store.append(turn("b"))
    done = openclaw_rl("export", tmp_path / "here", "--out", tmp_path / "talks.jsonl")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "2 conversations written\n")
    one = openclaw_rl("export", tmp_path / "here", "--session", "session b")
    assert one.stdout == (tmp_path / "talks.jsonl").read_text().splitlines(keepends=True)[1]
    for said in ("2 turns stored, 0 already there\n", "0 turns stored, 2 already there\n"):
        done = openclaw_rl("import", tmp_path / "talks.jsonl", tmp_path / "there")
        assert (done.returncode, done.stderr) == (0, said)
    async with Store.open(tmp_path / "there") as store:
        assert await store.get("b") == turn("b")


def test_a_buffer_that_is_not_there_is_not_made(tmp_path: Path):
    done = openclaw_rl("export", tmp_path / "none")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"openclaw-rl: error: {tmp_path}/none: no turns are stored there")
    assert not (tmp_path / "none").exists()


def test_conversations_without_ids_are_refused_with_the_way_to_train_on_them(tmp_path: Path):
    (tmp_path / "talks.jsonl").write_text('{"session_id": "s", "turns": [{"prompt": "a", "response": "b"}]}\n')
    done = openclaw_rl("import", tmp_path / "talks.jsonl", tmp_path / "there")
    assert done.returncode == 2
    assert "talks.jsonl:1: turn 1: it was not exported; --data-path trains on conversations" in done.stderr
