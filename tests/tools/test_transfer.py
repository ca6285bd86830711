"""Export and import: what goes out of one store comes into another as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from slime.data.conversation_files import read_conversations
from slime.errors import ConfigError, StoreError
from slime.store import Store
from slime.store.records import encode_json
from slime.tools.transfer import adopt, export_sessions
from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, TurnState, Verdict, VersionSpan

CALL = {"type": "function", "function": {"name": "search", "arguments": "{}"}}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def turn(name: str, parent: Turn | None = None, said: tuple[Message, ...] | None = None, **changes: object) -> Turn:
    history = () if parent is None else (*parent.messages, parent.reply)
    fed = (1, 2) if parent is None else (*parent.prompt_ids, *parent.completion.token_ids)
    completion = Completion(
        (7, 8, len(name)),
        (-0.1, -1 / 3, -1e-300),
        f"{name}!",
        "stop",
        (VersionSpan(3, 0, 1), VersionSpan(4, 1, 3)),
    )
    values = {
        "turn_id": name,
        "session_id": "s1",
        "parent_id": None if parent is None else parent.turn_id,
        "kind": TurnKind.MAIN,
        "messages": (*history, *(said or (user(f"ask {name}"),))),
        "prompt_ids": (*fed, 11, 12, 13),
        "completion": completion,
        "sampling": SamplingParams(temperature=0.7, stop=("###",), seed=5),
        "reply": {"role": "assistant", "content": completion.text, "tool_calls": [CALL | {"id": f"call{name}n0"}]},
        "tools": ({"type": "function", "function": {"name": "search"}},),
        "created_at": 1_790_000_000.25,
        "source": "me",
        "template_options": {"enable_thinking": False},
        "matching": {"credential": "c0"},
        "details": {"emoji": "🙂", "lone": "\ud800"},
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


async def fill(store: Store) -> list[str]:
    """A session with a tool result, a branch, a side turn, a retry, a rewritten history and turns that do not train."""
    first = turn("t1")
    tool = {"role": "tool", "tool_call_id": "callt1n0", "content": "found"}
    second = turn("t2", first, said=(tool, user("go on")))
    branch = turn("t3", first, said=(user("otherwise"),), kind=TurnKind.BRANCH)
    side = turn("t4", kind=TurnKind.SIDE)
    retry = turn("t5", first, said=(tool, user("go on")), kind=TurnKind.RETRY, retry_of="t2", parent_id="t1")
    rewritten = turn("t6", None, said=(user("ask t1"), second.reply, user("summary")), parent_id="t2")
    greedy = turn("t7", rewritten, state=TurnState.EXCLUDED, reason="sampled with temperature=0")
    await store.append(first)
    await store.append(second, next_state_of=("t1", (tool, user("go on"))))
    await store.append(branch, next_state_of=("t1", (user("otherwise"),)))
    await store.append(side)
    await store.append(retry)
    await store.append(rewritten, next_state_of=("t2", (user("summary"),)))
    await store.append(greedy, next_state_of=("t6", (user("ask t7"),)))
    await store.attach("t3", (user("thanks"),))
    await store.append(turn("u1", session_id="s2"))
    await store.append(turn("u2", session_id="s2", parent_id="elsewhere"))
    await store.abort("u1", "the client left")
    return ["t1", "t2", "t3", "t4", "t5", "t6", "t7", "u1", "u2"]


async def write(store: Store, file: Path) -> None:
    lines = [encode_json(session) async for session in export_sessions(store)]
    file.write_bytes(b"\n".join(lines) + b"\n")  # noqa: ASYNC240 - a local file


@pytest.fixture
async def here(tmp_path: Path):
    async with Store.open(tmp_path / "here") as store:
        yield store


@pytest.fixture
async def there(tmp_path: Path):
    async with Store.open(tmp_path / "there") as store:
        yield store


async def test_every_turn_arrives_as_it_was(here: Store, there: Store, tmp_path: Path):
    names = await fill(here)
    await write(here, tmp_path / "out.jsonl")
    for conversation in read_conversations(tmp_path / "out.jsonl"):
        await adopt(there, conversation)
    assert await there.session_ids() == await here.session_ids() == ["s1", "s2"]
    for name in names:
        original = await here.get(name)
        assert original is not None
        assert await there.get(name) == original
        assert await there.next_states(name) == await here.next_states(name)
    assert await there.counts() == await here.counts()


async def test_importing_again_changes_nothing_and_exporting_again_gives_the_same(
    here: Store, there: Store, tmp_path: Path
):
    await fill(here)
    await write(here, tmp_path / "out.jsonl")
    stored = [(await adopt(there, c)).stored for c in read_conversations(tmp_path / "out.jsonl")]
    again = [await adopt(there, c) for c in read_conversations(tmp_path / "out.jsonl")]
    assert stored == [7, 2]
    assert [(adopted.stored, adopted.known) for adopted in again] == [(0, 7), (0, 2)]
    await write(there, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()


async def test_verdicts_go_along_and_what_the_store_did_does_not(here: Store, there: Store, tmp_path: Path):
    await fill(here)
    verdict = Verdict(
        -1.0, votes=(-1.0, None), agreement=0.5, hints=("Be brief.", "No lists."), judge="llm", details={"a": [1]}
    )
    claims = {claim.turn.turn_id for claim in await here.claim(9, "me", 60)}
    assert claims == {"t1", "t2", "t3", "t6"}
    await here.record_verdict("t1", verdict, "me")
    await here.record_verdict("t2", Verdict(0.0, judge="llm"), "me")
    await here.mark_trained(["t1"], 4)
    await here.exclude(["t6"], "stale: too old")
    await write(here, tmp_path / "out.jsonl")
    for conversation in read_conversations(tmp_path / "out.jsonl"):
        await adopt(there, conversation)
    states = {}
    for name in ("t1", "t2", "t3", "t6"):
        arrived = await there.get(name)
        assert arrived is not None
        states[name] = arrived.state
    assert states == {
        "t1": TurnState.JUDGED,
        "t2": TurnState.EXCLUDED,
        "t3": TurnState.READY,
        "t6": TurnState.READY,
    }
    assert await there.verdict("t1") == verdict
    assert [claim.verdict for claim in await there.claim(1, "you", 60)] == [verdict]
    original, arrived = await here.get("t6"), await there.get("t6")
    assert original is not None
    assert original.reason == "stale: too old"
    assert arrived == replace(original, state=TurnState.READY, reason="")


async def test_a_long_session_is_not_written_again_with_every_turn(here: Store, tmp_path: Path):
    parent: Turn | None = None
    for number in range(40):
        parent = turn(f"t{number}", parent, said=(user("x" * 200),))
        await here.append(parent)
    await write(here, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").stat().st_size < 40 * 2000
    [session] = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert session["turns"][7]["prompt"] == [user("x" * 200)]


async def test_another_turn_under_the_same_id_is_refused(here: Store, there: Store, tmp_path: Path):
    await fill(here)
    await there.append(turn("t2", session_id="mine"))
    await write(here, tmp_path / "out.jsonl")
    [first, _] = read_conversations(tmp_path / "out.jsonl")
    with pytest.raises(StoreError, match="t2"):
        await adopt(there, first)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda record: record.pop("logprobs"), "its record is damaged: KeyError: 'logprobs'"),
        (lambda record: record["logprobs"].pop(), "3 token ids but 2 log-probs"),
        (lambda record: record.update(kind="mian"), "'mian' is not a valid TurnKind"),
        (lambda record: record.update(prompt_ids_kept=99), "it keeps 99 ids of a turn that has 0"),
    ],
)
async def test_a_damaged_record_is_named(here: Store, there: Store, tmp_path: Path, damage, words: str):
    await here.append(turn("t1"))
    [session] = [session async for session in export_sessions(here)]
    damage(session["turns"][0]["record"])
    (tmp_path / "out.jsonl").write_bytes(encode_json(session))
    [conversation] = read_conversations(tmp_path / "out.jsonl")
    with pytest.raises(ConfigError) as caught:
        await adopt(there, conversation)
    assert str(caught.value).startswith(f"{tmp_path}/out.jsonl:1: turn 1: ")
    assert words in str(caught.value)


async def test_a_session_that_is_not_there_is_named(here: Store):
    with pytest.raises(ConfigError, match="no session nobody"):
        [session async for session in export_sessions(here, ["nobody"])]
