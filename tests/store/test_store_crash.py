"""Killed at any moment, the store has everything it acknowledged; a disk that fails costs an answer, never a turn.

Faults are real: SIGKILL at random moments and at chosen system calls, ENOSPC and EIO from the kernel's own
interface (strace), a file size limit. Each is counted: a fault that did not fire fails its test.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from slime.errors import StoreError
from slime.store import Store
from slime.types import Turn, TurnState, Verdict
from stored_turns import build_turn

HERE = Path(__file__).parent
STRACE = shutil.which("strace")


def start(directory: Path, first: int, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, str(HERE / "appending_process.py"), str(directory), str(first)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def read_until_end(process: subprocess.Popen[str], seconds: float) -> list[str]:
    """What the process said by its death, or by our SIGKILL after `seconds`."""
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # a tracer's death alone would let its tracee live on
        said, _ = process.communicate()
    return said.splitlines()


def named(lines: Sequence[str], word: str) -> list[str]:
    return [turn_id for turn_id in (line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} "))]


async def check(directory: Path, acknowledged: Sequence[str]) -> int:
    """Everything acknowledged is there, whole, once and in a legal state; returns how many turns are stored."""
    async with Store.open(directory) as store:
        turns = await store.recent(1_000_000)
        ids = [turn.turn_id for turn in turns]
        assert len(ids) == len(set(ids))
        assert set(acknowledged) <= set(ids)
        assert sum((await store.counts()).values()) == len(turns), "none is unreadable"
        by_id = {turn.turn_id: turn for turn in turns}
        for turn in turns:
            assert expected(turn, by_id) == turn
            answers = [child.messages[-1:] for child in turns if child.parent_id == turn.turn_id]
            assert turn.next_state == (answers[0] if answers else None)
            assert turn.state is (TurnState.READY if answers else TurnState.SERVED)
    with sqlite3.connect(directory / "turns.sqlite3") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return len(turns)


def expected(turn: Turn, by_id: dict[str, Turn]) -> Turn:
    """The turn as the process made it, less what came later."""
    parent = by_id[turn.parent_id] if turn.parent_id else None
    made: Turn = build_turn(turn.turn_id, parent, turn.session_id, state=turn.state, next_state=turn.next_state)
    return made


@pytest.mark.slow
def test_sigkill_at_random_moments_loses_nothing_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(7)
    acknowledged: list[str] = []
    kills = 0
    for run in range(12):
        process = start(tmp_path, 1 + run * 100_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(rng.uniform(0.01, 0.3))
        process.kill()
        said = process.stdout.read().splitlines()
        assert process.wait(10) == -signal.SIGKILL
        kills += 1
        acknowledged += named(said, "ack")
    assert kills == 12
    assert len(acknowledged) > 200
    asyncio.run(check(tmp_path, acknowledged))


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="strace is not installed; the random kills above run everywhere")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_kill_at_every_kind_of_system_call(tmp_path: Path, call: str) -> None:
    fired = 0
    for number in (*range(6, 30, 3), 60, 121, 244):
        directory = tmp_path / str(number)
        process = start(
            directory, 1, STRACE or "", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={number}"
        )
        said = read_until_end(process, 30)
        fired += process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if (directory / "turns.sqlite3").exists():
            asyncio.run(check(directory, named(said, "ack")))
    assert fired == 11, "a fault that did not fire proves nothing"


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="strace is not installed; the full disk below runs everywhere")
@pytest.mark.parametrize(("call", "error"), [("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("fdatasync", "EIO")])
def test_disk_errors_are_told_and_outlived(tmp_path: Path, call: str, error: str) -> None:
    """From a thread's 100th call on (opening takes some 60) 25 calls fail; then both are well by themselves."""
    trace = tmp_path / "trace"
    inject = f"inject={call}:error={error}:when=100..124"
    strace = (STRACE or "", "-f", "-qq", "-o", str(trace), "-e", f"trace={call}", "-e", inject)
    process = start(tmp_path / "store", 1, *strace)
    said = read_until_end(process, 6)
    assert len(re.findall(r"\(INJECTED\)", trace.read_text())) == 25
    failed, acknowledged = named(said, "failed"), named(said, "ack")
    assert failed
    last_failure = max(index for index, line in enumerate(said) if line.startswith("failed"))
    assert len(named(said[last_failure:], "ack")) > 20, "it took no restart to go on"
    asyncio.run(check(tmp_path / "store", acknowledged))


async def test_full_disk_is_a_store_error_and_ends_with_the_shortage(tmp_path: Path) -> None:
    """A limit on file size stands in for the disk's end: writes fail in the kernel, in the middle of a page."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    acknowledged: list[str] = []
    failures = 0
    try:
        async with Store.open(tmp_path) as store:
            await store.append(build_turn("first"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
            for number in range(200):
                try:
                    await store.append(build_turn(f"a{number}", details={"filler": os.urandom(4000).hex()}))
                    acknowledged.append(f"a{number}")
                except StoreError:
                    failures += 1
                    if failures == 5:
                        break
            assert failures == 5
            assert await store.get("first") is not None, "reading goes on"
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            for number in range(20):
                await store.append(build_turn(f"b{number}"))
                acknowledged.append(f"b{number}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    async with Store.open(tmp_path) as store:
        stored = {turn.turn_id for turn in await store.recent(1000)}
    assert stored >= {"first", *acknowledged}


async def test_claim_of_a_killed_collector_is_free_after_its_lease(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from slime.store import Store\n"
        "async def main():\n"
        "    store = Store.open(sys.argv[1], appends=False)\n"
        "    print(*[claim.turn.turn_id for claim in await store.claim(9, 'collector', 2.0)], flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    async with Store.open(tmp_path) as store:
        for name in ("t1", "t2"):
            await store.append(build_turn(name, next_state=({"role": "user", "content": "Thanks!"},)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        claimed = time.monotonic()
        assert (await asyncio.wait_for(process.stdout.readline(), 30)).split() == [b"t1", b"t2"]
        process.kill()
        await process.wait()
        if time.monotonic() - claimed < 1.5:
            assert await store.claim(9, "next", 60) == []
        await asyncio.sleep(2.1)
        claims = await store.claim(9, "next", 60)
        assert [claim.turn.turn_id for claim in claims] == ["t1", "t2"]
        for claim in claims:
            await store.record_verdict(claim.turn.turn_id, Verdict(1.0), "next")
        await store.mark_trained(["t1", "t2"], 1)
        assert (await store.counts())[TurnState.TRAINED] == 2
