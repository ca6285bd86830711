"""A wire format of its own is one file, here this one, and one row of `ENDPOINTS`; everything else comes with it."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from server_rig import ADMIN_KEY, Rig, StartRig, until
from slime.errors import EngineUnavailable, RequestError
from slime.types import Message, Turn, TurnState

from openclaw.api.app import ENDPOINTS
from openclaw.api.endpoints.sampling import read_sampling
from openclaw.api.exchange import Answer, Last, Opening, Whole
from openclaw.api.generation import Generation, Part, Placed, Reply
from openclaw.api.incoming import Incoming
from openclaw.requests.canonical import canonical, conversation_of
from openclaw.requests.chat_request import ChatRequest

PATH = "/v1/talks"


class Talks:
    """`{"talk": ["Hi", "Hello there.", "And now?"]}`: both sides by turns; the answer is the next line.

    Whole: `{"id": "talk-t2m9…", "line": "…"}`. Streamed: `+…` for a piece, `.talk-t2m9…` at the end, `!…` for an error.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    async def answer(self, incoming: Incoming) -> Answer:
        request = self._read(incoming)
        async with aclosing(self._generation.run(request)) as events:
            async for event in events:
                if isinstance(event, Placed):
                    if request.stream:
                        yield Opening([(b"x-talk", event.turn_id.encode())], lambda error: b"!" + error + b"\n")
                elif isinstance(event, Part):
                    if text := "".join(delta.get("content", "") for delta in event.deltas):
                        yield f"+{text}\n".encode()
                elif request.stream:
                    yield Last(f".talk-{event.turn_id}\n".encode())
                else:
                    yield Whole(json.dumps({"id": f"talk-{event.turn_id}", "line": _line(event)}).encode())

    def _read(self, incoming: Incoming) -> ChatRequest:
        talk = incoming.body.get("talk")
        if not isinstance(talk, list) or not talk or not all(isinstance(line, str) for line in talk):
            raise RequestError("talk must be a list of lines", "talk")
        messages = spoken(talk)
        return ChatRequest(
            messages,
            conversation_of(map(canonical, messages)),
            read_sampling(incoming.body, self._generation.model.default_max_tokens),
            incoming.caller,
            stream=incoming.body.get("stream") is True,
        )


def _line(reply: Reply) -> str:
    return str(reply.message["content"])


def spoken(talk: list[str]) -> list[Message]:
    return [{"role": ("user", "assistant")[number % 2], "content": line} for number, line in enumerate(talk)]


@pytest.fixture
def start_with_talks(start: StartRig, monkeypatch: pytest.MonkeyPatch) -> StartRig:
    monkeypatch.setitem(ENDPOINTS, PATH, Talks)  # the one line elsewhere
    return start


async def say(rig: Rig, *talk: str, **fields: Any) -> str:
    """The id of the answer."""
    response = await rig.http.post(PATH, json={"talk": talk, **fields})
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


async def stored(rig: Rig, answer_id: str) -> Turn:
    assert rig.store is not None
    turn = await rig.store.get(answer_id.removeprefix("talk-"))
    assert turn is not None
    return turn


async def test_its_replies_are_captured_and_its_conversations_found_again(start_with_talks: StartRig) -> None:
    rig = await start_with_talks(["Hello there.", "I think that is right."])
    first = await stored(rig, await say(rig, "Hi", temperature=0.7))
    assert (first.messages, first.reply["content"]) == (tuple(spoken(["Hi"])), "Hello there.")
    assert first.sampling.temperature == 0.7
    second = await stored(rig, await say(rig, "Hi", "Hello there.", "And now?"))
    assert (second.parent_id, second.session_id) == (first.turn_id, first.session_id)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    first = await stored(rig, first.turn_id)
    assert first.next_state == ({"role": "user", "content": "And now?"},)
    assert first.state is TurnState.READY


async def test_a_conversation_goes_on_at_another_endpoint(start_with_talks: StartRig) -> None:
    rig = await start_with_talks(["Hello there.", "I think that is right."])
    first = await stored(rig, await say(rig, "Hi"))
    answer = await rig.chat(messages=spoken(["Hi", "Hello there.", "And now?"]))
    second = await stored(rig, answer.json()["openclaw"]["turn"])
    assert (second.parent_id, second.session_id) == (first.turn_id, first.session_id)


async def test_its_stream_ends_after_the_commit(start_with_talks: StartRig) -> None:
    rig = await start_with_talks("Hello there.")
    async with rig.http.stream("POST", PATH, json={"talk": ["Hi"], "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = []
        async for line in response.aiter_lines():
            lines.append(line)
            if line.startswith("."):
                turn = await stored(rig, line[1:])
    assert "".join(line[1:] for line in lines[:-1]) == "Hello there." == turn.reply["content"]
    assert len(lines) > 2
    assert response.headers["x-talk"] == turn.turn_id


async def test_its_replies_take_feedback_by_their_own_ids(start_with_talks: StartRig) -> None:
    rig = await start_with_talks()
    answer_id = await say(rig, "Hi")
    said = await rig.http.post(
        "/v1/feedback",
        json={"turn_id": answer_id, "kind": "thumbs", "value": "up"},
        headers={"authorization": f"Bearer {ADMIN_KEY}"},
    )
    assert (said.status_code, said.json()["effect"]) == (200, "counts"), said.text
    assert (await stored(rig, answer_id)).state is TurnState.READY


async def test_what_is_wrong_is_refused_as_everywhere(start_with_talks: StartRig) -> None:
    rig = await start_with_talks(api_key="k")
    key = {"authorization": "Bearer k"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"talk": "Hi"}, "talk"),
        ({"talk": ["Hi"], "temperature": -1}, "temperature"),
        ({"talk": ["Hi"], "turn_type": "mian"}, "turn_type"),
        ({"talk": ["Hello there " * 2_000]}, "messages"),
    ]
    for body, field in wrong:
        response = await rig.http.post(PATH, json=body, headers=key)
        assert (response.status_code, response.json()["error"]["param"]) == (400, field), response.text
    assert (await rig.http.post(PATH, json={"talk": ["Hi"]})).status_code == 401
    assert (await rig.http.get(PATH, headers=key)).status_code == 405
    form = await rig.http.post(PATH, content=b"talk=Hi", headers=key | {"content-type": "text/plain"})
    assert form.status_code == 415


async def test_a_stream_that_breaks_off_says_so_in_its_own_format(
    start_with_talks: StartRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start_with_talks("Hello there, how are you today?")
    generate = rig.pool.stream

    async def broken(*arguments: Any) -> Any:
        number = 0
        async with aclosing(generate(*arguments)) as deltas:
            async for delta in deltas:
                yield delta
                number += 1
                if number == 3:
                    raise EngineUnavailable("the engine is gone")

    monkeypatch.setattr(rig.pool, "stream", broken)
    lines, was_cut = [], False
    try:
        async with rig.http.stream("POST", PATH, json={"talk": ["Hi"], "stream": True}) as response:
            async for line in response.aiter_lines():
                lines.append(line)
    except httpx.RemoteProtocolError:
        was_cut = True
    assert was_cut
    assert json.loads(lines[-1][1:])["error"]["code"] == "engine_unavailable"
    assert lines[-1][0] == "!"
    await until(lambda: _is_aborted(rig, response.headers["x-talk"]))


async def _is_aborted(rig: Rig, turn_id: str) -> bool:
    assert rig.store is not None
    turn = await rig.store.get(turn_id)
    return turn is not None and turn.state is TurnState.ABORTED
