"""The life of a turn, from append to training, on a real file."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from slime.errors import ConfigError, IllegalTransition, LeaseLost, StoreError
from slime.store import Store
from slime.types import Message, Turn, TurnKind, TurnState, Verdict
from stored_turns import build_turn

THANKS: tuple[Message, ...] = ({"role": "user", "content": "Thanks!"},)
GOOD = Verdict(score=1.0, votes=(1.0, 1.0, None), agreement=1.0, judge="llm", details={"latency_s": 0.2})


class Clock:
    """A monotonic clock that moves when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    async with Store.open(tmp_path, clock=clock) as opened:
        yield opened


async def ready(store: Store, *turn_ids: str) -> list[Turn]:
    turns = [build_turn(turn_id, session_id=f"s-{turn_id}") for turn_id in turn_ids]
    for turn in turns:
        await store.append(turn)
        await store.attach(turn.turn_id, THANKS)
    return turns


async def judged(store: Store, *turn_ids: str) -> None:
    await ready(store, *turn_ids)
    for claim in await store.claim(len(turn_ids), "c", 60):
        await store.record_verdict(claim.turn.turn_id, GOOD, "c")


async def test_turn_reads_back_as_it_was_given(store: Store) -> None:
    first = build_turn("t1")
    second = build_turn("t2", parent=first)
    await store.append(first)
    await store.append(second, next_state_of=("t1", second.messages[-1:]))
    assert await store.get("t2") == second
    assert await store.get("t1") == dataclasses.replace(first, next_state=second.messages[-1:], state=TurnState.READY)
    assert await store.get("t3") is None


async def test_reopened_store_has_everything(tmp_path: Path) -> None:
    first = build_turn("t1")
    async with Store.open(tmp_path) as store:
        await store.append(first)
    async with Store.open(tmp_path) as store:
        second = build_turn("t2", parent=first)  # its base is read back from the file
        await store.append(second)
        assert await store.recent(10) == [first, second]
        assert await store.session("s1") == [first, second]
        assert await store.recent(1) == [second]


async def test_text_that_is_not_utf8_and_numbers_beyond_64_bits_survive(store: Store) -> None:
    turn = build_turn(
        "t1", reply={"role": "assistant", "content": "half a pair \ud800"}, details={"n": 2**80, "nul": "\0"}
    )
    await store.append(turn)
    assert await store.get("t1") == turn


async def test_append_again_changes_nothing(store: Store) -> None:
    first, second = build_turn("t1"), build_turn("t2", parent=build_turn("t1"))
    await store.append(first)
    for _ in range(2):
        await store.append(second, next_state_of=("t1", THANKS))
    assert await store.next_states("t1") == [("t2", THANKS)]
    with pytest.raises(StoreError, match="another turn is stored as t2"):
        await store.append(dataclasses.replace(second, prompt_ids=(5, 6)))
    assert await store.get("t2") == second


async def test_a_turn_is_stored_while_one_of_very_many_messages_is_under_way(store: Store) -> None:
    """The others of its group would wait for each of its messages."""
    many = tuple({"role": "user", "content": f"message {number}"} for number in range(4_000))
    ends: list[str] = []

    async def append(turn: Turn) -> None:
        await store.append(turn)
        ends.append(turn.turn_id)

    await asyncio.gather(append(build_turn("long", messages=many)), append(build_turn("short")))
    assert ends == ["short", "long"]
    assert (await store.get("long") or build_turn("none")).messages == many


async def test_first_next_state_wins_and_later_ones_are_kept(store: Store) -> None:
    root = build_turn("t1")
    await store.append(root)
    other: tuple[Message, ...] = ({"role": "user", "content": "No, shorter."},)
    await store.append(build_turn("t2", parent=root), next_state_of=("t1", THANKS))
    await store.append(build_turn("t3", parent=root, kind=TurnKind.BRANCH), next_state_of=("t1", other))
    turn = await store.get("t1")
    assert turn is not None
    assert turn.next_state == THANKS
    assert await store.next_states("t1") == [("t2", THANKS), ("t3", other)]


async def test_unknown_answered_turn_does_not_cost_the_new_one(store: Store) -> None:
    turn = build_turn("t2", parent_id="lost")
    await store.append(turn, next_state_of=("lost", THANKS))
    assert await store.get("t2") == turn


@pytest.mark.parametrize("kind", [TurnKind.SIDE, TurnKind.COMPACTION])
async def test_kinds_that_do_not_train_are_never_claimed(store: Store, kind: TurnKind) -> None:
    await store.append(build_turn("t1", kind=kind), next_state_of=None)
    await store.attach("t1", THANKS)
    assert await store.claim(10, "c", 60) == []
    assert (await store.counts())[TurnState.SERVED] == 1


async def test_turn_travels_to_training(store: Store) -> None:
    await ready(store, "t1", "t2")
    claims = await store.claim(10, "c", 60)
    assert [(claim.turn.turn_id, claim.turn.state, claim.verdict) for claim in claims] == [
        ("t1", TurnState.CLAIMED, None),
        ("t2", TurnState.CLAIMED, None),
    ]
    assert await store.claim(10, "other", 60) == []
    await store.record_verdict("t1", GOOD, "c")
    assert await store.verdict("t1") == GOOD
    await store.mark_trained(["t1"], step=4)
    assert await store.trained_by(4) == ("t1",)
    assert await store.trained_at("t1") == 4
    assert [move.target for move in await store.history("t1")] == ["served", "ready", "claimed", "judged", "trained"]
    assert [move.note for move in await store.history("t1")] == ["", "", "c", "c", "step 4"]


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [(Verdict(score=0.0), "score 0"), (Verdict(score=None, reason="no quorum"), "unjudged: no quorum")],
)
async def test_verdict_without_effect_excludes(store: Store, verdict: Verdict, reason: str) -> None:
    await ready(store, "t1")
    await store.claim(1, "c", 60)
    await store.record_verdict("t1", verdict, "c")
    turn = await store.get("t1")
    assert turn is not None
    assert turn.state is TurnState.EXCLUDED
    assert turn.reason == reason


async def test_dead_lease_is_taken_over_and_its_old_holder_told(store: Store, clock: Clock) -> None:
    await ready(store, "t1")
    await store.claim(1, "slow", 60)
    clock.now += 59
    assert await store.claim(1, "next", 60) == []
    await store.renew(["t1"], "slow", 60)
    clock.now += 59
    assert await store.claim(1, "next", 60) == []
    clock.now += 2
    assert [claim.turn.turn_id for claim in await store.claim(1, "next", 60)] == ["t1"]
    with pytest.raises(LeaseLost):
        await store.renew(["t1"], "slow", 60)
    with pytest.raises(LeaseLost, match="held by next"):
        await store.record_verdict("t1", GOOD, "slow")
    await store.record_verdict("t1", GOOD, "next")


async def test_lease_of_an_earlier_boot_is_dead(store: Store, clock: Clock) -> None:
    await ready(store, "t1")
    await store.claim(1, "before", 60)
    clock.now = 3.0  # the monotonic clock starts anew with the machine
    assert len(await store.claim(1, "after", 60)) == 1


async def test_late_verdict_counts_while_nobody_else_holds_the_turn(store: Store, clock: Clock) -> None:
    await ready(store, "t1")
    await store.claim(1, "c", 60)
    clock.now += 100
    await store.record_verdict("t1", GOOD, "c")
    await store.record_verdict("t1", GOOD, "c")  # the answer to the first call was lost
    assert (await store.counts())[TurnState.JUDGED] == 1


async def test_judged_turn_is_handed_out_again_with_its_verdict(store: Store, clock: Clock) -> None:
    await judged(store, "t1")
    assert await store.claim(1, "other", 60) == []
    assert await store.release("c") == 1
    (claim,) = await store.claim(1, "other", 60)
    assert claim.verdict == GOOD
    assert claim.turn.state is TurnState.JUDGED


async def test_release_frees_claims_at_once(store: Store) -> None:
    await ready(store, "t1", "t2")
    await store.claim(2, "c", 600)
    assert await store.release("c") == 2
    assert len(await store.claim(2, "c", 600)) == 2


async def test_each_turn_trains_once_in_a_lineage(store: Store) -> None:
    await judged(store, "t1", "t2")
    await store.mark_trained(["t1"], step=1)
    await store.mark_trained(["t1"], step=1)
    with pytest.raises(IllegalTransition, match="was trained at step 1"):
        await store.mark_trained(["t2", "t1"], step=2)
    assert await store.trained_at("t2") is None, "all or none"
    await store.mark_trained(["t2"], step=2)
    assert await store.rewind(1) == 1
    assert [claim.turn.turn_id for claim in await store.claim(9, "d", 60)] == ["t2"]
    await store.mark_trained(["t2"], step=2)
    assert [move.note for move in await store.history("t2")][-3:] == ["step 2", "rewound to step 1", "step 2"]


async def test_illegal_moves_are_refused_and_named(store: Store) -> None:
    await store.append(build_turn("t1"))
    with pytest.raises(IllegalTransition, match="t1 is served and cannot become trained"):
        await store.mark_trained(["t1"], 1)
    with pytest.raises(IllegalTransition, match="cannot be stored as trained"):
        await store.append(build_turn("t2", state=TurnState.TRAINED))
    with pytest.raises(StoreError, match="no turn t9"):
        await store.exclude(["t9"], "gone")
    await store.exclude(["t1"], "the session is over")
    await store.exclude(["t1"], "another reason")
    turn = await store.get("t1")
    assert turn is not None
    assert turn.reason == "the session is over"


async def test_refused_job_takes_nothing_down_with_it(store: Store) -> None:
    outcomes = await asyncio.gather(
        store.append(build_turn("t1")),
        store.append(build_turn("t2", state=TurnState.CLAIMED)),
        store.append(build_turn("t3", details={"not": object()})),
        store.append(build_turn("t4", prompt_ids=(2**31,))),
        store.append(build_turn("t5")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        IllegalTransition,
        StoreError,
        StoreError,
        type(None),
    ]
    assert [turn.turn_id for turn in await store.recent(9)] == ["t1", "t5"]
    assert await store.get("t5") == build_turn("t5")


async def test_aborted_reply_is_kept_and_never_ready(store: Store) -> None:
    await store.append(build_turn("t1", state=TurnState.ABORTED), next_state_of=None)
    await store.append(build_turn("t2"))
    await store.abort("t2", "the client went")
    await store.attach("t2", THANKS)
    assert (await store.counts())[TurnState.ABORTED] == 2


async def test_cancelled_append_is_stored_all_the_same(store: Store) -> None:
    task = asyncio.create_task(store.append(build_turn("t1")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.append(build_turn("t2"))
    assert await store.get("t1") is not None


async def test_second_server_is_refused_and_collectors_are_not(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"another server .process {os.getpid()}. stores its turns in"):
        Store.open(tmp_path)
    async with Store.open(tmp_path, appends=False) as collector:
        await store.append(build_turn("t1"))
        await collector.attach("t1", THANKS)
        assert len(await collector.claim(1, "c", 60)) == 1
        with pytest.raises(StoreError, match="appends=False"):
            await collector.append(build_turn("t2"))


async def test_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    await store.append(build_turn("t1"))
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.append(build_turn("t2"))
    async with Store.open(tmp_path) as again:
        assert (await again.counts())[TurnState.SERVED] == 1


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    foreign, newer, text = tmp_path / "a.sqlite3", tmp_path / "b.sqlite3", tmp_path / "c.sqlite3"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE x (y)")
    asyncio.run(Store.open(newer).close())
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    text.write_text("not a database at all " * 100)
    for path, problem in ((foreign, "not a turn store"), (newer, "store schema 99"), (text, "not a database")):
        with pytest.raises(ConfigError, match=problem):
            Store.open(path)
        with pytest.raises(ConfigError, match=problem):  # the lock was let go
            Store.open(path)
    with pytest.raises(ConfigError, match="postgresql"):
        Store.open("postgresql://host/db")
    with pytest.raises(ConfigError, match="cannot be opened"):
        Store.open(text / "below-a-file")


async def test_files_are_private(store: Store, tmp_path: Path) -> None:
    await store.append(build_turn("t1"))
    assert {entry.name: oct(entry.stat().st_mode & 0o777) for entry in os.scandir(tmp_path)} == dict.fromkeys(
        ("turns.sqlite3", "turns.sqlite3-wal", "turns.sqlite3-shm", "turns.sqlite3.lock"), "0o600"
    )


async def test_long_session_grows_with_what_is_new(store: Store) -> None:
    """The 120th turn of a session costs the bytes of the 20th, though its history is six times as long."""
    turn: Turn | None = None
    sizes: list[int] = []
    with sqlite3.connect(store.path) as look:
        for number in range(120):
            clock_message: Message = {"role": "system", "content": f"It is now {number:03}."}
            turn = build_turn(f"t{number:03}", parent=turn)
            turn = dataclasses.replace(turn, messages=(clock_message, *turn.messages[bool(number) :]))
            await store.append(turn)
            sizes.append(
                look.execute(
                    "SELECT LENGTH(messages) + LENGTH(prompt_tail) + LENGTH(logprobs) + LENGTH(body) "
                    "FROM records ORDER BY seq DESC LIMIT 1"
                ).fetchone()[0]
            )
        (contents,) = look.execute("SELECT COUNT(*) FROM contents").fetchone()
    assert turn is not None
    assert sizes[-1] <= sizes[20] + 8
    assert contents == 120 * 3 + 1, "each system prompt, question and reply once, and one tool list"
    assert await store.get("t119") == turn
    assert len(await store.session("s1")) == 120
