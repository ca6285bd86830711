"""A damaged file: whoever reads a damaged turn is told, nobody is given one, and the others are read on."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from slime.errors import ConfigError, CorruptRecord, StoreError
from slime.store import Store
from slime.types import Message, Turn, TurnState, Verdict
from stored_turns import build_turn

THANKS: tuple[Message, ...] = ({"role": "user", "content": "Thanks!"},)


async def store_ready_turns(directory: Path, count: int) -> dict[str, Turn]:
    """A closed store with `count` turns in sessions of three, all ready."""
    turns: dict[str, Turn] = {}
    async with Store.open(directory) as store:
        for number in range(count):
            parent = turns[f"t{number - 1}"] if number % 3 else None
            turns[f"t{number}"] = build_turn(f"t{number}", parent, f"s{number // 3}", next_state=THANKS)
            await store.append(turns[f"t{number}"])
    return turns


def damage(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / "turns.sqlite3") as connection:
        assert connection.execute(statement).rowcount == 1


FLIP_FIRST_BYTE = "CAST(X'FF' || SUBSTR({0}, 2) AS BLOB)"


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE records SET prompt_tail = {FLIP_FIRST_BYTE.format('prompt_tail')} WHERE seq = 1",
        f"UPDATE records SET logprobs = {FLIP_FIRST_BYTE.format('logprobs')} WHERE seq = 1",
        f"UPDATE records SET token_ids = {FLIP_FIRST_BYTE.format('token_ids')} WHERE seq = 1",
        f"UPDATE records SET body = {FLIP_FIRST_BYTE.format('body')} WHERE seq = 1",
        "UPDATE records SET messages = X'01' WHERE seq = 1",
        "UPDATE records SET token_ids = 'text' WHERE seq = 1",
        "UPDATE records SET reply_id = 999 WHERE seq = 1",
        "UPDATE records SET created_at = 1.0 WHERE seq = 1",
        "UPDATE turns SET session_id = 's9' WHERE turn_id = 't0'",
        "UPDATE turns SET parent_id = 't5' WHERE turn_id = 't0'",
        "UPDATE turns SET kind = 'retry' WHERE turn_id = 't0'",
        "UPDATE next_states SET content_ids = X'01000000' WHERE seq = 1",
        "UPDATE contents SET body = '{}' WHERE content_id = 1",
        "DELETE FROM contents WHERE content_id = 1",
        "DELETE FROM records WHERE seq = 1",
    ],
)
async def test_damaged_turn_is_refused_excluded_and_never_handed_out(tmp_path: Path, statement: str) -> None:
    turns = await store_ready_turns(tmp_path, 6)
    damage(tmp_path, statement)
    async with Store.open(tmp_path) as store:
        with pytest.raises(CorruptRecord):
            await store.get("t0")
        read = await store.recent(10)
        assert turns["t0"].turn_id not in [turn.turn_id for turn in read]
        assert {"t3", "t4", "t5"} <= {turn.turn_id for turn in read}, "other sessions are whole"
        claims = await store.claim(10, "c", 60)
        assert [claim.turn.turn_id for claim in claims] == [turn.turn_id for turn in read]
        for claim in claims:
            assert claim.turn.prompt_ids == turns[claim.turn.turn_id].prompt_ids
        assert (await store.counts())[TurnState.EXCLUDED] == len(turns) - len(claims)
        assert (await store.history("t3"))[-1].target is TurnState.CLAIMED


@pytest.mark.parametrize("base", ["NULL", "1", "5"])
async def test_link_to_the_wrong_base_is_noticed(tmp_path: Path, base: str) -> None:
    await store_ready_turns(tmp_path, 6)
    damage(tmp_path, f"UPDATE records SET base_seq = {base} WHERE seq = 3")
    async with Store.open(tmp_path) as store:
        assert [turn.turn_id for turn in await store.recent(9)] == ["t0", "t1", "t3", "t4", "t5"]


async def test_damaged_base_is_noticed_in_every_turn_built_on_it(tmp_path: Path) -> None:
    await store_ready_turns(tmp_path, 6)
    damage(tmp_path, f"UPDATE records SET token_ids = {FLIP_FIRST_BYTE.format('token_ids')} WHERE seq = 1")
    async with Store.open(tmp_path) as store:
        assert [turn.turn_id for turn in await store.session("s0")] == []
        assert len(await store.session("s1")) == 3


async def test_damaged_verdict_is_a_typed_error(tmp_path: Path) -> None:
    await store_ready_turns(tmp_path, 1)
    async with Store.open(tmp_path) as store:
        await store.claim(1, "c", 60)
        await store.record_verdict("t0", Verdict(1.0), "c")
        damage(tmp_path, "UPDATE verdicts SET body = '{\"score\": -1.0}'")
        with pytest.raises(CorruptRecord):
            await store.verdict("t0")
        await store.release("c")
        assert await store.claim(1, "c", 60) == []


@pytest.mark.parametrize("seed", range(4))
async def test_flipped_bytes_anywhere_give_the_turn_or_an_error(tmp_path: Path, seed: int) -> None:
    """60 files, each with one to three bytes of the database changed: no wrong turn comes out of any of them."""
    turns = await store_ready_turns(tmp_path, 9)
    file = tmp_path / "turns.sqlite3"
    whole = file.read_bytes()
    rng = random.Random(seed)
    outcomes = {"same": 0, "error": 0}
    for _ in range(15):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            store = Store.open(tmp_path)
        except ConfigError:
            outcomes["error"] += 1
            continue
        async with store:
            for turn_id, given in turns.items():
                try:
                    found = await store.get(turn_id)
                except StoreError:
                    outcomes["error"] += 1
                    continue
                if found is None:
                    outcomes["error"] += 1
                    continue
                outcomes["same"] += 1
                assert (found.prompt_ids, found.completion, found.messages, found.reply, found.sampling) == (
                    given.prompt_ids,
                    given.completion,
                    given.messages,
                    given.reply,
                    given.sampling,
                )
    assert outcomes["same"] > 0
    assert sum(outcomes.values()) >= 15
