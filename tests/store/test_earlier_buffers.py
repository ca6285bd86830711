"""Buffers and exported sessions of an earlier program, where what decided something stood among the details."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from slime.config.sections import JudgeConfig
from slime.data.conversation_files import read_conversations
from slime.errors import StoreError
from slime.judging.llm.relative import RelativeJudge, SiblingJudge
from slime.judging.scripted import ScriptedJudge
from slime.store import Store, schema
from slime.tools.transfer import adopt, export_sessions
from slime.types import Turn, TurnState, Verdict

from openclaw.conversations.recall import Recall
from openclaw.replay import as_recorded
from openclaw.requests.reading import Reading

EARLIER = Path(__file__).with_name("earlier")
FIRST, SECOND, GREEDY, NAMED = (
    *("t0mwr5ma4e4ww9ikgtyyk", "t0mwr5ma4hiubzvwin0ih"),
    *("t0mwr5ma4jb3gzjxn6htv", "t0mwr5ma4mb2820fyztk2"),
)
KEY_A = "24e773f48eff6fb02de1c7511290494a"
ASKED = "Is it?"


@pytest.fixture
def buffer_dir(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / schema.FILE_NAME) as connection:
        connection.executescript((EARLIER / "buffer.sql").read_text(encoding="utf-8"))
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 3")
    return tmp_path


async def turn_of(store: Store, turn_id: str) -> Turn:
    turn = await store.get(turn_id)
    assert turn is not None
    return turn


async def test_a_turn_of_an_earlier_buffer_has_its_source_options_and_reason(buffer_dir: Path) -> None:
    async with Store.open(buffer_dir, appends=False) as store:
        first, second, greedy = [await turn_of(store, turn_id) for turn_id in (FIRST, SECOND, GREEDY)]
    assert [turn.source for turn in (first, second, greedy)] == [KEY_A, "alice", KEY_A]
    assert (first.template_options, second.template_options) == ({}, {"enable_thinking": False})
    assert (first.reason, greedy.state) == ("", TurnState.EXCLUDED)
    assert greedy.reason == "sampled with temperature=0, which the trainer cannot repeat"
    assert first.matching is not None
    assert first.matching["credential"] == KEY_A
    assert first.details == {"session_source": "content"}, "what is left is for people"


async def test_a_verdict_of_an_earlier_buffer_has_its_hints_and_its_waits(buffer_dir: Path) -> None:
    async with Store.open(buffer_dir, appends=False) as store:
        said, out = await store.verdict(FIRST), await store.verdict("out1")
        votes = await store.judgements(FIRST)
    assert said is not None
    assert (said.score, said.hints, said.ask_again_after_s) == (-1.0, ("Use plain text, without bold.",), None)
    assert said.details == {"hindsight": "votes: 1, 1; 1 hints are fit", "refused_hints": []}
    assert [(vote.judge, vote.score, vote.group) for vote in votes] == [("llm", -1.0, ())] * 2 + [("hint", 1.0, ())] * 2
    assert out is not None
    assert (out.score, out.hints, out.retry_after_s, out.hint_retry_after_s) == (None, (), 7.0, 9.0)


async def test_replies_that_were_compared_before_are_not_compared_again(buffer_dir: Path) -> None:
    class Silent:
        name = "silent"

    config = JudgeConfig(majority_vote_n=2)
    async with Store.open(buffer_dir, appends=False) as store:
        judge = SiblingJudge(ScriptedJudge(lambda turn: None), RelativeJudge(Silent(), config), store)  # type: ignore[arg-type]
        verdict = await judge.judge(await turn_of(store, "sib1"))
        [kept, _] = await store.judgements("sib1")
    assert (verdict.score, verdict.agreement, verdict.reason) == (1.0, 1.0, "compared before")
    assert (kept.group, kept.details) == (("sib1", "sib2"), {"policy_version": 0})


async def test_a_conversation_of_an_earlier_buffer_goes_on_where_it_was(buffer_dir: Path) -> None:
    async with Store.open(buffer_dir, appends=False) as store:
        stored = await turn_of(store, GREEDY)
        recall = Recall(store)
        await recall.start()
        assert recall.index.num_turns == 4
        messages = [*stored.messages, stored.reply, {"role": "user", "content": "And 5 times 4?"}]
        body = {"model": "m", "messages": messages}
        request = as_recorded("/v1/chat/completions", {}, body, "key-a")
        reading = Reading(request.conversation)
        placement = recall.index.begin(request, reading, await recall.before(request, reading))
    assert (placement.parent_id, placement.session_id) == (GREEDY, stored.session_id)


async def test_sessions_exported_earlier_are_taken_as_the_turns_they_were(buffer_dir: Path, tmp_path: Path) -> None:
    conversations = list(read_conversations(EARLIER / "sessions.jsonl"))
    async with Store.open(buffer_dir) as old, Store.open(tmp_path / "new") as new:
        into_old = [await adopt(old, conversation) for conversation in conversations]
        into_new = [await adopt(new, conversation) for conversation in conversations]
        assert sum(adopted.known for adopted in into_old) == sum(adopted.stored for adopted in into_new) == 7
        assert {adopted.stored for adopted in into_old} == {0}, "the same turns, written otherwise"
        for turn_id in (FIRST, SECOND, GREEDY, NAMED, "sib1", "sib2", "out1"):
            before, after = await turn_of(old, turn_id), await turn_of(new, turn_id)
            assert (before.source, before.template_options, before.matching, before.details) == (
                *(after.source, after.template_options, after.matching, after.details),
            )
            assert await old.verdict(turn_id) == await new.verdict(turn_id)
        assert (await turn_of(new, GREEDY)).reason.startswith("sampled with temperature=0")
        assert [session["turns"][0]["record"]["source"] async for session in export_sessions(old)] == [
            *(KEY_A, "883a956b9f31251778309e6c85156369", "carol", "carol"),
        ]


async def test_another_turn_under_the_id_of_an_earlier_one_is_refused(buffer_dir: Path) -> None:
    async with Store.open(buffer_dir) as store:
        stored = await turn_of(store, NAMED)
        await store.append(replace(stored, state=TurnState.SERVED))
        for changes in ({"source": "mallory"}, {"messages": ({"role": "user", "content": ASKED},)}):
            with pytest.raises(StoreError, match="another turn is stored"):
                await store.append(replace(stored, **changes))  # type: ignore[arg-type]


async def test_a_row_written_today_names_what_decides_apart_from_the_details(tmp_path: Path) -> None:
    """Keys that once decided are a plug-in's own now: as details they stay, and nothing is read in them."""
    details = {"hint_candidates": ["Be brief."], "retry_after_s": 7.0, "judgements": [1]}
    said = Verdict(1.0, (1.0,), judge="plugin", details=details, zero_counts=True)
    [conversation] = [c for c in read_conversations(EARLIER / "sessions.jsonl") if c.session_id == "siblings"]
    async with Store.open(tmp_path) as store:
        await adopt(store, conversation, with_verdicts=False)
        [claim] = await store.claim(1, "me", 60)
        await store.record_verdict(claim.turn.turn_id, said, "me")
        assert await store.verdict(claim.turn.turn_id) == said
