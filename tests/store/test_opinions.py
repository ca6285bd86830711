"""Judgements and feedback: what is kept, what counts, and what it does to a turn's state."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from slime.errors import CorruptRecord, StoreError
from slime.store import Store, records, schema
from slime.types import Feedback, Judgement, Message, TurnKind, TurnState, Verdict
from stored_turns import build_turn

THANKS: tuple[Message, ...] = ({"role": "user", "content": "Thanks!"},)
PROMPT = ({"role": "user", "content": "How was it received?"},)
UP, DOWN = Feedback("thumbs", 1.0), Feedback("thumbs", -1.0)


def judgement(score: float | None, **fields: Any) -> Judgement:
    answer = "" if score is None else f"So \\boxed{{{score:g}}}"
    return Judgement("llm", score, "m", PROMPT, answer, **fields)


def verdict(score: float | None = 1.0, *judgements: Judgement) -> Verdict:
    return Verdict(score, judge="llm", reason="votes", details={"kept": 1}, judgements=judgements)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path) as opened:
        yield opened


async def claimed(store: Store, turn_id: str = "t1") -> None:
    await store.append(build_turn(turn_id, session_id=f"s-{turn_id}"))
    await store.attach(turn_id, THANKS)
    assert [claim.turn.turn_id for claim in await store.claim(1, "c", 60)] == [turn_id]


async def state_of(store: Store, turn_id: str = "t1") -> TurnState:
    turn = await store.get(turn_id)
    assert turn is not None
    return turn.state


# ── judgements ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_judgements_are_kept_apart_from_the_verdict_and_read_back(store: Store) -> None:
    await claimed(store)
    said = [
        judgement(1.0, latency_s=0.4, created_at=5.0, details={"policy_version": 7}),
        judgement(None, failure="timeout", created_at=6.0),
    ]
    assert await store.record_verdict("t1", verdict(1.0, *said), "c")
    stored = await store.verdict("t1")
    assert stored is not None
    assert stored.details == {"kept": 1}
    assert await store.judgements("t1") == [
        Judgement("llm", 1.0, "m", PROMPT, r"So \boxed{1}", "", 0.4, 5.0, {"policy_version": 7}),
        Judgement("llm", None, "m", PROMPT, "", "timeout", 0.0, 6.0),
    ]


async def test_a_verdict_without_judgements_is_one(store: Store) -> None:
    await claimed(store)
    await store.record_verdict("t1", Verdict(-1.0, judge="rule", reason="rejection: wrong"), "c")
    [kept] = await store.judgements("t1")
    assert (kept.judge, kept.score, kept.answer, kept.failure) == ("rule", -1.0, "rejection: wrong", "")
    assert kept.created_at > 0
    await claimed(store, "t2")
    await store.record_verdict("t2", Verdict(None, judge="plugin", reason="TypeError"), "c")
    [kept] = await store.judgements("t2")
    assert (kept.score, kept.failure) == (None, "TypeError")


async def test_what_a_plugin_calls_judgements_in_its_details_stays_there(store: Store) -> None:
    await claimed(store)
    await store.record_verdict("t1", Verdict(1.0, judge="plugin", details={"judgements": ["good", "fine"]}), "c")
    stored = await store.verdict("t1")
    assert stored is not None
    assert stored.details == {"judgements": ["good", "fine"]}
    assert [kept.judge for kept in await store.judgements("t1")] == ["plugin"]


async def test_the_same_call_again_keeps_nothing_twice_and_votes_share_their_prompt(
    store: Store, tmp_path: Path
) -> None:
    await claimed(store)
    for _ in range(2):
        await store.record_verdict("t1", verdict(1.0, judgement(1.0), judgement(1.0)), "c")
    assert len(await store.judgements("t1")) == 2
    with sqlite3.connect(tmp_path / "turns.sqlite3") as connection:
        assert connection.execute("SELECT COUNT(DISTINCT prompt_id) FROM judgements").fetchone() == (1,)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("UPDATE judgements SET body = CAST(replace(body, '1.0', '0.0') AS BLOB)", "checksum"),
        ("UPDATE judgements SET prompt_id = (SELECT MIN(content_id) FROM contents)", "checksum"),
        ("UPDATE judgements SET body = x'7b'", "checksum"),
    ],
)
async def test_a_damaged_judgement_is_noticed(store: Store, tmp_path: Path, damage: str, problem: str) -> None:
    await claimed(store)
    await store.record_verdict("t1", verdict(1.0, judgement(1.0)), "c")
    with sqlite3.connect(tmp_path / "turns.sqlite3") as connection:
        assert connection.execute(damage).rowcount == 1
    with pytest.raises(CorruptRecord, match=problem):
        await store.judgements("t1")


# ── another judge ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("first", "second", "state"),
    [
        (Verdict(0.0), Verdict(1.0), TurnState.JUDGED),
        (Verdict(None, reason="down"), Verdict(-1.0), TurnState.JUDGED),
        (Verdict(None, reason="down"), Verdict(0.0), TurnState.EXCLUDED),
        (Verdict(1.0), Verdict(-1.0), TurnState.JUDGED),
        (Verdict(1.0), Verdict(0.0), TurnState.EXCLUDED),
    ],
)
async def test_another_judge_may_think_otherwise(
    store: Store, first: Verdict, second: Verdict, state: TurnState
) -> None:
    await claimed(store)
    await store.record_verdict("t1", first, "c")
    await store.release("c")
    assert await store.revise_verdict("t1", second)
    assert await store.verdict("t1") == second
    assert await state_of(store) is state
    assert len(await store.judgements("t1")) == 2


async def test_what_is_held_trained_or_excluded_for_another_reason_is_not_judged_again(store: Store) -> None:
    await claimed(store, "t1")
    await store.record_verdict("t1", Verdict(1.0), "c")
    assert not await store.revise_verdict("t1", Verdict(-1.0)), "a collector holds it"
    await store.mark_trained(["t1"], 1)
    assert not await store.revise_verdict("t1", Verdict(-1.0)), "it is trained"
    await claimed(store, "t2")
    await store.exclude(["t2"], "stale")
    assert not await store.revise_verdict("t2", Verdict(-1.0))
    assert await store.verdict("t1") == Verdict(1.0)
    assert len(await store.judgements("t1")) == 3, "what was said is kept all the same"


# ── feedback ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_feedback_makes_a_turn_ready_without_a_next_state(store: Store) -> None:
    await store.append(build_turn("t1"))
    stored = await store.add_feedback("t1", UP)
    assert stored.number > 0
    assert stored.created_at > 0
    [claim] = await store.claim(5, "c", 60)
    assert claim.turn.next_state is None
    assert claim.feedback == stored
    assert await store.record_verdict("t1", Verdict(1.0, judge="person"), "c", feedback=stored)
    assert await state_of(store) is TurnState.JUDGED


async def test_newest_feedback_counts_and_all_are_kept(store: Store) -> None:
    await store.append(build_turn("t1"))
    said = [await store.add_feedback("t1", feedback) for feedback in (UP, DOWN, Feedback("text", text="Too long."))]
    assert await store.feedback("t1") == said
    [claim] = await store.claim(5, "c", 60)
    assert claim.feedback == said[-1]


async def test_feedback_during_judging_sends_the_verdict_back(store: Store) -> None:
    await claimed(store)
    feedback = await store.add_feedback("t1", DOWN)
    assert await state_of(store) is TurnState.CLAIMED
    assert not await store.record_verdict("t1", Verdict(1.0), "c")
    assert await store.verdict("t1") is None
    assert await store.record_verdict("t1", Verdict(-1.0), "c", feedback=feedback)
    assert await state_of(store) is TurnState.JUDGED


@pytest.mark.parametrize("first", [Verdict(0.0), Verdict(None, reason="down"), Verdict(1.0)])
async def test_late_feedback_takes_a_verdict_back(store: Store, first: Verdict) -> None:
    await claimed(store)
    await store.record_verdict("t1", first, "c")
    await store.release("c")
    await store.add_feedback("t1", DOWN)
    assert await state_of(store) is TurnState.READY
    [claim] = await store.claim(5, "c", 60)
    assert claim.verdict is None, "what was said before the feedback does not count"


async def test_a_turn_that_waits_for_the_trainer_is_let_go_of_when_asked(store: Store) -> None:
    for turn_id in ("t1", "t2"):
        await claimed(store, turn_id)
        await store.record_verdict(turn_id, Verdict(1.0), "c")
    await store.add_feedback("t2", DOWN)
    assert await state_of(store, "t2") is TurnState.JUDGED, "held by a collector"
    assert await store.reconsider(["t1", "t2"], "c") == ("t2",)
    assert await state_of(store, "t2") is TurnState.READY
    assert await store.reconsider(["t1", "t2"], "c") == ()


async def test_feedback_on_a_turn_whose_lease_ended_is_seen_by_the_next_holder(store: Store) -> None:
    await claimed(store)
    await store.record_verdict("t1", Verdict(1.0), "c")
    await store.add_feedback("t1", DOWN)
    await store.release("c")
    [claim] = await store.claim(5, "d", 60)
    assert claim.verdict is None
    assert claim.feedback is not None
    assert claim.feedback.value == -1.0


async def test_trained_excluded_aborted_and_side_turns_stay_what_they_are(store: Store) -> None:
    await claimed(store, "t1")
    await store.record_verdict("t1", Verdict(1.0), "c")
    await store.mark_trained(["t1"], 1)
    await store.append(build_turn("t2", state=TurnState.EXCLUDED, session_id="s2"))
    await store.append(build_turn("t3", state=TurnState.ABORTED, session_id="s3"))
    await store.append(build_turn("t4", kind=TurnKind.SIDE, session_id="s4"))
    before = {turn_id: await state_of(store, turn_id) for turn_id in ("t1", "t2", "t3", "t4")}
    for turn_id in before:
        await store.add_feedback(turn_id, DOWN)
    assert {turn_id: await state_of(store, turn_id) for turn_id in before} == before
    assert await store.verdict("t1") == Verdict(1.0)
    with pytest.raises(StoreError, match="no turn nobody"):
        await store.add_feedback("nobody", UP)


async def test_a_persons_verdict_is_not_revised_by_a_judge(store: Store) -> None:
    await store.append(build_turn("t1"))
    feedback = await store.add_feedback("t1", UP)
    await store.claim(1, "c", 60)
    await store.record_verdict("t1", Verdict(1.0, judge="person"), "c", feedback=feedback)
    await store.release("c")
    assert not await store.revise_verdict("t1", Verdict(-1.0))


async def test_damaged_feedback_is_noticed(store: Store, tmp_path: Path) -> None:
    await store.append(build_turn("t1"))
    await store.add_feedback("t1", UP)
    with sqlite3.connect(tmp_path / "turns.sqlite3") as connection:
        connection.execute("UPDATE feedback SET body = CAST(replace(body, '1.0', '-1.0') AS BLOB)")
    with pytest.raises(CorruptRecord, match="checksum"):
        await store.feedback("t1")


# ── files of earlier versions ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_of_version_1_gets_what_is_new_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "turns.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.executescript(schema.CREATE)
        columns = "seq, turn_id, session_id, kind, state"
        connection.execute(f"INSERT INTO turns ({columns}) VALUES (1, 'a', 's', 'main', 'excluded')")
        body = b'{"score":0.0,"votes":[],"agreement":1.0,"hint":null,"judge":"rule","reason":"","details":{}}'
        crc = records.checksum((body,))
        connection.execute("INSERT INTO verdicts VALUES (1, 1.0, ?, ?)", (body, crc))
    for _ in range(2):
        async with Store.open(tmp_path) as store:
            assert await store.verdict("a") == Verdict(0.0, judge="rule")
            assert await store.judgements("a") == []
            await store.add_feedback("a", UP)
    async with Store.open(tmp_path) as store:
        assert len(await store.feedback("a")) == 2
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA_VERSION,)
