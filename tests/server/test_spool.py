"""A store that is locked or full for a while: what a reply says of its turn is what becomes of it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from server_rig import Rig, StartRig, until
from slime.errors import StoreError, StoreUnavailable
from slime.store import writer

from openclaw import spool
from openclaw.spool import Spool

HI = {"role": "user", "content": "Hi"}
REPLY = {"role": "assistant", "content": "Hello there."}


def outcome_of(response: httpx.Response) -> tuple[str, str]:
    note = response.json()["openclaw"]
    assert response.headers["x-openclaw-turn"] == note["turn"]
    return note["turn"], note["capture"]


async def check_outcomes(rig: Rig, outcomes: list[tuple[str, str]]) -> None:
    """`stored` and `pending` are in the store now, `failed` is not."""
    assert rig.store is not None
    for turn_id, outcome in outcomes:
        assert (await rig.store.get(turn_id) is not None) == (outcome != "failed"), (turn_id, outcome)


async def lock_for(rig: Rig, seconds: float) -> list[tuple[str, str]]:
    """Outcomes of a conversation that goes on while another process holds the store."""
    assert rig.store is not None
    other = sqlite3.connect(rig.store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    outcomes = [outcome_of(await rig.chat())]
    for number in range(3):
        history = [HI, *([REPLY, {"role": "user", "content": "And?"}] * (number + 1))]
        outcomes.append(outcome_of(await rig.chat(messages=history)))
    ready = await rig.http.get("/readyz")
    assert (ready.status_code, ready.json()["store"]) == (200, False)
    assert ready.json()["turns_pending"] == 4
    await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))
    other.execute("ROLLBACK")
    other.close()
    await until(lambda: rig.capture.num_pending == 0, 20)
    return outcomes


async def test_turns_of_a_store_that_was_locked_are_committed_later_and_in_order(
    start: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "COMMIT_PATIENCE_S", 0.3)
    monkeypatch.setattr(writer, "LOCK_WAIT_S", 0.5)  # gives up, and must be asked again
    rig = await start()
    outcomes = await lock_for(rig, 2.0)
    assert [outcome for _, outcome in outcomes] == ["pending"] * 4
    await check_outcomes(rig, outcomes)
    assert rig.store is not None
    turns = await rig.store.recent(10)
    assert [turn.turn_id for turn in turns] == [turn_id for turn_id, _ in outcomes]
    assert [turn.parent_id for turn in turns[1:]] == [turn.turn_id for turn in turns[:-1]]
    assert all(turn.next_state for turn in turns[:-1]), "an answer never overtakes the turn that it answers"
    assert (rig.capture.num_stored, rig.capture.num_failed) == (4, 0)
    assert outcome_of(await rig.chat())[1] == "stored"


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_store_that_is_locked_for_13_s_loses_nothing(start: StartRig) -> None:
    rig = await start()
    outcomes = await lock_for(rig, 13.0)
    assert [outcome for _, outcome in outcomes] == ["pending"] * 4
    await check_outcomes(rig, outcomes)
    assert rig.capture.num_failed == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, where this user may mount one."""
    directory = tmp_path / "disk"
    directory.mkdir(mode=0o700)
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip("only root mounts a small file system")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_turns_of_a_disk_that_was_full_are_committed_once_there_is_room(
    start: StartRig, small_disk: Path
) -> None:
    rig = await start(buffer_dir=small_disk)
    outcomes = [outcome_of(await rig.chat())]
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_bsize - 8192))
    for number in range(12):
        said = {"role": "user", "content": f"{number} {os.urandom(300).hex()}"}
        outcomes.append(outcome_of(await rig.chat(messages=[said])))
    assert {outcome for _, outcome in outcomes[-3:]} == {"pending"}
    assert (await rig.http.get("/readyz")).status_code == 200
    filler.unlink()
    await until(lambda: rig.capture.num_pending == 0, 20)
    await check_outcomes(rig, outcomes)
    assert rig.capture.num_failed == 0


async def test_a_spool_that_is_full_says_failed_and_means_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SICK_COMMIT_PATIENCE_S", 0.01)
    monkeypatch.setattr(spool, "_PAUSES_S", (0.05,))
    is_sick, done = True, []

    async def nothing() -> None:
        pass

    def job(number: int):  # type: ignore[no-untyped-def]
        async def write() -> None:
            if is_sick:
                raise StoreUnavailable("full")
            done.append(number)

        return write

    kept = Spool(nothing, max_waiting=3)
    outcomes = [await kept.write(str(number), job(number), 1) for number in range(5)]
    assert outcomes == ["pending"] * 3 + ["failed"] * 2
    assert (kept.num_waiting, kept.num_failed, kept.keeps_turns) == (3, 2, False)
    is_sick = False
    await until(lambda: kept.num_waiting == 0)
    assert done == [0, 1, 2], "what was said to have failed is never written"
    assert await kept.write("5", job(5), 1) == "stored"


async def test_a_turn_that_the_store_refuses_fails_and_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_PAUSES_S", (0.05,))
    errors: list[Exception] = [StoreUnavailable("locked"), StoreError("not a turn")]

    async def refused() -> None:
        if errors:
            raise errors.pop(0)

    async def taken() -> None:
        pass

    kept = Spool(taken)
    assert await kept.write("a", refused, 1) == "pending"
    assert await kept.write("b", taken, 1) == "stored"
    assert (kept.num_failed, kept.num_stored, errors) == (1, 1, [])


async def test_a_server_that_ends_names_what_it_could_not_store(caplog: pytest.LogCaptureFixture) -> None:
    async def stuck() -> None:
        raise StoreUnavailable("locked")

    kept = Spool(stuck)
    assert await kept.write("t1", stuck, 1) == "pending"
    await kept.close(0.1)
    assert "turn not stored turn=t1 error=the server is shutting down" in caplog.text
    assert (kept.num_failed, kept.num_waiting) == (1, 0)


async def test_a_health_check_does_not_cost_a_commit_each(start: StartRig) -> None:
    rig = await start()
    assert rig.store is not None
    commits = 0
    check = rig.store.check_writable

    async def counted() -> None:
        nonlocal commits
        commits += 1
        await check()

    rig.capture._spool._check = counted  # type: ignore[union-attr]
    for _ in range(20):
        assert (await rig.http.get("/readyz")).status_code == 200
    assert commits <= 1 + 20 * 0.1
