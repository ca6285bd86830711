"""Several processes on one file: a server that appends, collectors that claim, and whoever else looks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from slime.errors import StoreError
from slime.store import Store, writer
from slime.types import Message, TurnState
from stored_turns import build_turn

THANKS: tuple[Message, ...] = ({"role": "user", "content": "Thanks!"},)

COLLECTOR = """
import asyncio, json, sys, time
from slime.store import Store
from slime.types import Verdict

async def main(directory, owner, count):
    store = Store.open(directory, appends=False)
    claimed, longest, deadline = [], 0.0, time.monotonic() + 40
    while (await store.counts())["judged"] != count and time.monotonic() < deadline:
        start = time.monotonic()
        claims = await store.claim(8, owner, 60.0)
        longest = max(longest, time.monotonic() - start)
        for claim in claims:
            await store.record_verdict(claim.turn.turn_id, Verdict(1.0, judge=owner), owner)
        claimed += [claim.turn.turn_id for claim in claims]
        await asyncio.sleep(0 if claims else 0.01)
    await store.close()
    print(json.dumps([claimed, longest]))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@dataclass(frozen=True)
class Collected:
    """What a collector took, and the longest it waited for an answer."""

    claimed: list[str]
    longest_s: float


async def collect(directory: Path, owner: str, count: int) -> Collected:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COLLECTOR, str(directory), owner, str(count), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return Collected(*json.loads(said))


@pytest.mark.slow
async def test_server_and_two_collectors_share_the_file(tmp_path: Path) -> None:
    """Every turn is claimed by exactly one collector while the server never pauses, and nobody starves."""
    count = 600
    async with Store.open(tmp_path) as store:
        collectors = [asyncio.create_task(collect(tmp_path, owner, count)) for owner in ("one", "two")]

        async def serve(connection: int) -> None:
            for number in range(count // 8):
                await store.append(build_turn(f"{connection}x{number}", session_id=f"s{connection}", next_state=THANKS))

        await asyncio.gather(*(serve(connection) for connection in range(8)))
        one, two = await asyncio.gather(*collectors)
        assert (await store.counts())[TurnState.JUDGED] == count
        claimed = [*one.claimed, *two.claimed]
        assert len(claimed) == len(set(claimed)) == count
        assert max(one.longest_s, two.longest_s) < 5.0
        verdicts = [await store.verdict(turn_id) for turn_id in claimed[:50]]
        assert {verdict.judge for verdict in verdicts if verdict is not None} <= {"one", "two"}


async def test_lock_held_by_another_fails_the_group_and_the_next_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual_wait_s = writer.LOCK_WAIT_S
    monkeypatch.setattr(writer, "LOCK_WAIT_S", 0.2)
    async with Store.open(tmp_path) as store:
        await store.append(build_turn("t1"))
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        with pytest.raises(StoreError, match="locked"):
            await store.append(build_turn("t2"))
        assert 0.2 <= time.monotonic() - start < usual_wait_s
        assert (await store.counts())[TurnState.SERVED] == 1, "reading waits for nobody"
        other.execute("ROLLBACK")
        other.close()
        await store.append(build_turn("t2"))
        assert (await store.counts())[TurnState.SERVED] == 2


async def test_concurrent_appends_share_their_fsyncs(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        commits = 0

        def count(statement: str) -> None:
            nonlocal commits
            commits += statement == "COMMIT"

        await store.append(build_turn("t0"))
        await store._write(lambda connection: connection.set_trace_callback(count))
        await asyncio.gather(*(store.append(build_turn(f"a{number}")) for number in range(200)))
        assert commits <= 20
        assert (await store.counts())[TurnState.SERVED] == 201


async def test_event_loop_is_not_held_up_by_writing(tmp_path: Path) -> None:
    """An append costs the loop's own thread microseconds; encoding and the disk are the writer's business."""
    turns = [build_turn(f"a{number}", prompt_ids=tuple(range(20_000))) for number in range(50)]
    async with Store.open(tmp_path) as store:
        start = time.thread_time()
        await asyncio.gather(*(store.append(turn) for turn in turns))
        assert (time.thread_time() - start) / len(turns) < 300e-6
