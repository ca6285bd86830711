"""Conversations that memory has lost go on from the store: after a restart, and when others pushed them out."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from slime.errors import StoreError
from slime.store import Store
from slime.types import Completion, Message, SamplingParams, Turn, TurnState, VersionSpan
from talking import CHAT, assistant, calling, result, user

from openclaw.conversations.index import ConversationIndex, Placement
from openclaw.conversations.recall import Recall
from openclaw.conversations.stored_turns import keys_of
from openclaw.replay import as_recorded
from openclaw.requests.reading import Reading


class Server:
    """Recall and store as capture uses them; a new one on the same directory is a restart."""

    def __init__(self, store: Store, max_turns: int = 50_000) -> None:
        self.store = store
        self.recall = Recall(store)
        self.recall.index._max_turns = max_turns

    @property
    def index(self) -> ConversationIndex:
        return self.recall.index

    async def begin(
        self, messages: Sequence[Message], *, credential: str = "key", headers: Mapping[str, str] | None = None
    ) -> Placement:
        body = {"model": "m", "messages": list(messages)}
        request = as_recorded(CHAT, headers or {}, body, credential)
        reading = Reading(request.conversation)
        return self.index.begin(request, reading, await self.recall.before(request, reading))

    async def answer(self, messages: Sequence[Message], reply: str | Message, **about: Any) -> Placement:
        placement = await self.begin(messages, **about)
        await self.finish(placement, messages, assistant(reply) if isinstance(reply, str) else reply)
        return placement

    async def finish(self, placement: Placement, messages: Sequence[Message], reply: Message) -> None:
        turn = stored(placement, messages, reply)
        await self.store.append(turn, keys=keys_of(turn))
        self.index.finish(placement, reply)


def stored(placement: Placement, messages: Sequence[Message], reply: Message) -> Turn:
    return Turn(
        turn_id=placement.turn_id,
        session_id=placement.session_id,
        parent_id=placement.parent_id,
        kind=placement.kind,
        messages=tuple(messages),
        prompt_ids=(1, 2, 3),
        completion=Completion((2,), (-0.5,), str(reply.get("content")), "stop", (VersionSpan(0, 0, 1),)),
        sampling=SamplingParams(),
        reply=reply,
        state=TurnState.SERVED,
        created_at=1_700_000_000.0,
        matching=placement.matching,
    )


def question(number: int) -> list[Message]:
    return [user(f"Question number {number}: what now?")]


async def test_every_open_conversation_goes_on_after_a_restart_by_the_words_of_its_reply(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        before = Server(store)
        begun = [await before.answer(question(number), "Go on as planned.") for number in range(300)]
    async with Store.open(tmp_path) as store:
        server = Server(store)
        await server.recall.start()
        assert server.index.num_turns <= 128
        for number, first in enumerate(begun):
            second = await server.begin([*question(number), assistant("Go on as planned."), user("Thanks")])
            assert (second.parent_id, second.session_id) == (first.turn_id, first.session_id)


async def test_a_conversation_that_was_pushed_out_of_memory_goes_on(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        server = Server(store, max_turns=20)
        begun = [await server.answer(question(number), f"Reply {number}") for number in range(100)]
        assert server.index.num_turns == 20
        for number in (0, 50, 0):
            second = await server.begin([*question(number), assistant(f"Reply {number}"), user("Thanks")])
            assert second.parent_id == begun[number].turn_id


async def test_what_went_on_from_a_recalled_turn_is_known_with_it(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        before = Server(store)
        first = await before.answer(question(1), "One.")
        history = [*question(1), assistant("One."), user("And two?")]
        await before.answer(history, "Two.")
        for number in range(2, 200):
            await before.answer(question(number), f"{number}.")
    async with Store.open(tmp_path) as store:
        server = Server(store)
        await server.recall.start()
        edited = await server.begin([*question(1), assistant("One."), user("And three?")])
        assert (edited.parent_id, edited.kind) == (first.turn_id, "branch")


async def test_calls_lead_back_after_a_restart_and_forged_ones_cost_one_look(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        before = Server(store)
        first = await before.begin(question(1))
        reply = calling(first, "{}")
        await before.finish(first, question(1), reply)
        for number in range(2, 200):
            await before.answer(question(number), f"{number}.")
    async with Store.open(tmp_path) as store:
        server = Server(store)
        await server.recall.start()
        looks = []
        recall = store.recall

        async def counted(keys: Sequence[bytes], turn_ids: Sequence[str] = (), session_ids: Sequence[str] = ()) -> Any:
            looks.append((len(keys), len(turn_ids)))
            return await recall(keys, turn_ids, session_ids)

        store.recall = counted  # type: ignore[method-assign]
        forged = [result(f"callt{number:020d}n0", "x") for number in range(5000)]
        for _ in range(3):
            assert (await server.begin([*question(9), *forged])).parent_id is None
        assert looks == [(0, 64)]
        second = await server.begin([*question(1), reply, result(reply["tool_calls"][0]["id"], "42")])
        assert second.parent_id == first.turn_id


async def test_a_session_name_never_crosses_keys_after_a_restart(tmp_path: Path) -> None:
    named = {"x-session-id": "work"}
    async with Store.open(tmp_path) as store:
        first = await Server(store).answer([user("A's secret")], "Kept.", credential="A", headers=named)
        assert first.session_id == "work"
    async with Store.open(tmp_path) as store:
        server = Server(store)
        server.recall._store_has_more = True  # nothing taken up: as if very many turns had come since
        other = await server.begin([user("Hi")], credential="B", headers=named)
        assert other.session_id.startswith("work~")
        again = await server.begin([user("A goes on")], credential="A", headers=named)
        assert again.session_id == "work"
        forged = {"x-session-id": other.session_id}
        assert (await server.begin([user("Hi")], credential="C", headers=forged)).session_id != other.session_id


async def test_a_session_name_never_crosses_keys_when_the_store_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*looked_for: object) -> None:
        raise StoreError("the disk is away")

    named = {"x-session-id": "work"}
    async with Store.open(tmp_path) as store:
        await Server(store).answer([user("A's secret")], "Kept.", credential="A", headers=named)
        server = Server(store)
        server.recall._store_has_more = True
        monkeypatch.setattr(store, "recall", fail)
        assert (await server.begin([user("Hi")], credential="B", headers=named)).session_id.startswith("work~")


async def test_another_key_finds_nothing_by_the_same_words_or_by_a_forged_id(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        first = await Server(store).answer(question(1), "One.", credential="A")
    async with Store.open(tmp_path) as store:
        server = Server(store)
        server.recall._store_has_more = True
        history = [*question(1), assistant("One."), user("Wrong!")]
        assert (await server.begin(history, credential="B")).parent_id is None
        forged = [*question(1), calling(first, "{}"), result(f"call{first.turn_id}n0", "Wrong!")]
        assert (await server.begin(forged, credential="B")).parent_id is None
        assert (await server.begin(history, credential="A")).parent_id == first.turn_id


async def test_a_store_of_before_gets_its_keys_and_its_conversations_go_on(tmp_path: Path) -> None:
    async with Store.open(tmp_path) as store:
        before = Server(store)
        begun = [await before.answer(question(number), "The same.") for number in range(300)]
    _as_schema_2(tmp_path / "turns.sqlite3")
    async with Store.open(tmp_path) as store:
        server = Server(store)
        await server.recall.start()
        await server.recall.give_keys()
        for number in (0, 150, 299):
            second = await server.begin([*question(number), assistant("The same."), user("Thanks")])
            assert second.parent_id == begun[number].turn_id
        assert await store.unkeyed(10) == (1, [])


def _as_schema_2(path: Path) -> None:
    """Make the file what the program before this one wrote."""
    connection = sqlite3.connect(path)
    connection.executescript("DROP TABLE matching_keys; DROP TABLE keys_owed; PRAGMA user_version = 2;")
    connection.close()


@pytest.mark.slow
async def test_thousands_of_conversations_go_on_though_none_was_read_at_the_start(
    tmp_path: Path,
) -> None:
    async with Store.open(tmp_path) as store:
        before = Server(store)
        begun = []
        for number in range(1_500):
            begun.append(await before.begin(question(number)))
        for start in range(0, 1_500, 250):
            some = range(start, start + 250)
            turns = [stored(begun[n], question(n), assistant("As you like it.")) for n in some]
            await _append_all(store, turns)
    async with Store.open(tmp_path) as store:
        server = Server(store)
        await server.recall.start()
        assert server.index.num_turns == 128
        found = 0
        for number, first in enumerate(begun):
            second = await server.begin([*question(number), assistant("As you like it."), user("Thanks")])
            found += second.parent_id == first.turn_id
        assert found == 1_500


async def _append_all(store: Store, turns: Sequence[Turn]) -> None:
    await asyncio.gather(*(store.append(turn, keys=keys_of(turn)) for turn in turns))
