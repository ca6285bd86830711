"""`POST /v1/feedback` against a running server and its store."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import httpx
import pytest
from server_rig import ADMIN_KEY, Rig, StartRig
from slime.config.sections import LoraConfig
from slime.types import Feedback, TurnState, Verdict

USER = {"role": "user", "content": "Hi"}


async def turn_of(rig: Rig, **options: Any) -> str:
    response = await rig.chat(**options)
    assert response.status_code == 200, response.text
    turn_id = response.json()["openclaw"]["turn"]
    assert turn_id == response.headers["x-openclaw-turn"]
    return str(turn_id)


async def say(rig: Rig, *, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    return await rig.http.post("/v1/feedback", json=body, headers=admin | (headers or {}))


async def kept(rig: Rig, turn_id: str) -> list[Feedback]:
    assert rig.store is not None
    return await rig.store.feedback(turn_id)


async def test_feedback_by_turn_id_makes_the_turn_ready_and_is_stored(start: StartRig) -> None:
    rig = await start()
    turn_id = await turn_of(rig)
    answer = await say(rig, turn_id=turn_id, kind="thumbs", value="up")
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["object"], said["turn_id"], said["value"]) == ("feedback", turn_id, 1.0)
    assert (said["state"], said["effect"], said["trained_at"]) == ("ready", "counts", None)
    [feedback] = await kept(rig, turn_id)
    assert (feedback.kind, feedback.value, feedback.number) == ("thumbs", 1.0, said["id"])


async def test_it_may_be_changed_and_the_newest_counts(start: StartRig) -> None:
    rig = await start()
    turn_id = await turn_of(rig)
    for body in (
        {"kind": "thumbs", "value": 1},
        {"kind": "score", "value": -0.5, "text": "too long"},
        {"kind": "text", "text": "Shorter."},
    ):
        assert (await say(rig, turn_id=f"chatcmpl-{turn_id}", **body)).status_code == 200
    assert [(said.value, said.text) for said in await kept(rig, turn_id)] == [
        (1.0, ""),
        (-0.5, "too long"),
        (None, "Shorter."),
    ]


@pytest.mark.parametrize(
    ("headers", "fields"),
    [({"x-session-id": "s1"}, {}), ({}, {"session_id": "s1"}), ({}, {"user": "ann"})],
)
async def test_last_reply_of_a_session_is_found_by_its_name(
    start: StartRig, headers: dict[str, str], fields: dict[str, str]
) -> None:
    rig = await start()
    first = await turn_of(rig, headers=headers, **fields)
    messages = [USER, {"role": "assistant", "content": "Hello there."}, {"role": "user", "content": "And you?"}]
    second = await turn_of(rig, headers=headers, messages=messages, **fields)
    await turn_of(rig, headers={"x-session-id": "another"})
    answer = await say(rig, headers=headers, kind="score", value=0, **fields)
    assert answer.json()["turn_id"] == second
    assert await kept(rig, first) == []


async def test_a_restarted_server_still_knows_the_session(start: StartRig, tmp_path: Any) -> None:
    rig = await start(buffer_dir=tmp_path / "b")
    turn_id = await turn_of(rig, headers={"x-session-id": "s1"})
    await rig.capture.close()
    again = await start(buffer_dir=tmp_path / "b")
    answer = await say(again, headers={"x-session-id": "s1"}, kind="thumbs", value="down")
    assert answer.json()["turn_id"] == turn_id


async def test_a_trained_turn_keeps_its_row_and_says_so(start: StartRig) -> None:
    rig = await start()
    assert rig.store is not None
    turn_id = await turn_of(rig)
    await rig.store.attach(turn_id, [USER])
    await rig.store.claim(1, "c", 60)
    await rig.store.record_verdict(turn_id, Verdict(1.0), "c")
    await rig.store.mark_trained([turn_id], 3)
    said = (await say(rig, turn_id=turn_id, kind="thumbs", value="down")).json()
    assert (said["effect"], said["state"], said["trained_at"]) == ("too_late", "trained", 3)
    assert await rig.store.verdict(turn_id) == Verdict(1.0)
    assert len(await kept(rig, turn_id)) == 1


async def test_a_turn_that_cannot_be_trained_says_so(start: StartRig) -> None:
    rig = await start()
    turn_id = await turn_of(rig, temperature=0)
    said = (await say(rig, turn_id=turn_id, kind="thumbs", value="up")).json()
    assert (said["effect"], said["state"]) == ("not_trained", TurnState.EXCLUDED)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "kind"),
    ({"kind": "star", "value": 1}, "kind"),
    ({"kind": "thumbs"}, "value"),
    ({"kind": "thumbs", "value": 0.5}, "value"),
    ({"kind": "thumbs", "value": "sideways"}, "value"),
    ({"kind": "thumbs", "value": True}, "value"),
    ({"kind": "score", "value": 2}, "value"),
    ({"kind": "score", "value": "1"}, "value"),
    ({"kind": "score"}, "value"),
    ({"kind": "text"}, "text"),
    ({"kind": "text", "text": "  "}, "text"),
    ({"kind": "text", "text": 5}, "text"),
    ({"kind": "text", "text": "x" * 20_001}, "text"),
    ({"kind": "thumbs", "value": "up", "txet": "x"}, "txet"),
    ({"kind": "thumbs", "value": "up", "turn_id": 5}, "turn_id"),
    ({"kind": "thumbs", "value": "up", "turn_id": "t1"}, "turn_id"),
    ({"kind": "thumbs", "value": "up"}, "turn_id"),
]


async def test_what_makes_no_sense_is_refused_with_the_field(start: StartRig) -> None:
    rig = await start()
    for body, param in BAD:
        answer = await say(rig, **body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param, body
        assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_a_chat_key_may_praise_nothing(start: StartRig) -> None:
    rig = await start(api_key="right")
    turn_id = await turn_of(rig, headers={"authorization": "Bearer right"})
    for headers, status in (
        ({"authorization": "Bearer right"}, 403),
        ({"authorization": "", "x-api-key": "right"}, 403),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": ""}, 401),
    ):
        assert (await say(rig, turn_id=turn_id, kind="thumbs", value="up", headers=headers)).status_code == status
    assert await kept(rig, turn_id) == []
    assert (await rig.http.get("/v1/feedback")).status_code == 405


async def test_without_a_chat_key_feedback_needs_the_admin_key_all_the_same(start: StartRig) -> None:
    rig = await start()
    turn_id = await turn_of(rig)
    refused = await say(rig, turn_id=turn_id, kind="thumbs", value="up", headers={"authorization": "Bearer local"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_needed")
    assert await kept(rig, turn_id) == []


async def test_the_admin_key_speaks_of_every_keys_turns_and_not_of_a_name_that_two_of_them_use(start: StartRig) -> None:
    rig = await start()
    anns = await turn_of(rig, headers={"authorization": "Bearer ann", "x-session-id": "s1"})
    assert (await say(rig, turn_id=anns, kind="thumbs", value="up")).json()["turn_id"] == anns
    assert (await say(rig, headers={"x-session-id": "s1"}, kind="thumbs", value="up")).json()["turn_id"] == anns
    bobs = await turn_of(rig, headers={"authorization": "Bearer bob", "x-session-id": "s1"})
    ambiguous = await say(rig, headers={"x-session-id": "s1"}, kind="thumbs", value="down")
    assert (ambiguous.status_code, ambiguous.json()["error"]["param"]) == (400, "turn_id")
    assert await kept(rig, bobs) == []
    unknown = await say(rig, turn_id="t" + "0" * 20, kind="thumbs", value="up")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "turn_not_found")


async def test_without_capture_there_is_nothing_to_speak_of(start: StartRig) -> None:
    rig = await start(capture=False)
    answer = await say(rig, turn_id="t" + "0" * 20, kind="thumbs", value="up")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "capture_off")


async def test_a_store_that_fails_is_told_and_nothing_is_acknowledged(start: StartRig) -> None:
    rig = await start()
    assert rig.store is not None
    turn_id = await turn_of(rig)
    with sqlite3.connect(rig.store.path) as connection:
        connection.execute("ALTER TABLE feedback RENAME TO lost")
    answer = await say(rig, turn_id=turn_id, kind="thumbs", value="up")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert answer.headers["retry-after"]


async def test_a_session_named_to_a_store_that_does_not_answer_is_a_503_in_time(
    start: StartRig, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start(buffer_dir=tmp_path / "first")
    await turn_of(first, headers={"x-session-id": "mine"})
    await first.capture.close()
    rig = await start(buffer_dir=tmp_path / "first")
    assert rig.store is not None

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.store, "recall", never)
    monkeypatch.setattr("openclaw.conversations.recall.NAMED_PATIENCE_S", 0.05)
    answer = await say(rig, headers={"x-session-id": "another"}, kind="thumbs", value="up")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable"), answer.text


async def test_feedback_finds_its_turn_where_every_user_has_an_adapter(start: StartRig) -> None:
    rig = await start(lora=LoraConfig(use_lora=True, adapter_per="user"))
    turn_id = await turn_of(rig, user="ada")
    for named in ({"turn_id": turn_id}, {"user": "ada"}):
        answer = await say(rig, kind="thumbs", value="up", **named)
        assert (answer.status_code, answer.json().get("turn_id")) == (200, turn_id), answer.text
