"""One request that is long, or made to take long, holds up no other: it is read and placed in short steps."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from asyncio import events
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from server_rig import StartRig
from slime.chat import ChatFormat
from slime.errors import PromptTooLong
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan

from openclaw.api.errors import ApiError
from openclaw.api.exchange import json_object
from openclaw.rendering import LONG_BYTES, Renderer, Rendering

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LONG = {
    "prose": [{"role": "user", "content": "The quick brown fox jumps over it. " * 8_000}],
    "lines": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "w\n" * 120_000}],
    "reminders": [{"role": "user", "content": "<system-reminder></system-reminder>" * 8_000}],
    "runtime heads": [{"role": "user", "content": "Runtime: agent=a" * 16_000}],
    "titles": [{"role": "user", "content": "generate a title for this chat. " * 8_000}],
    "calls": [{"role": "user", "content": "x"}] + [{"role": "assistant", "content": "", "tool_calls": [CALL]}] * 2_500,
    "messages": [{"role": "user", "content": ""}] * 4_000,
}
LONGEST_STEP_S = 0.05
"""Of processor time; five times what is aimed at, since a machine may be slow."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Processor seconds of every step that the event loop takes: what others run on the machine does not count."""
    taken: list[float] = []
    run = events.Handle._run

    def measured(handle: events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        taken.append(time.thread_time() - began)

    monkeypatch.setattr(events.Handle, "_run", measured)
    gc.disable()  # a collection looks through what all tests hold
    yield taken
    gc.enable()


async def test_a_long_body_takes_no_long_step_of_the_event_loop(start: StartRig, steps: list[float]) -> None:
    rig = await start()
    await rig.chat()
    longest = {}
    for name, messages in LONG.items():
        body = orjson.dumps({"model": "m", "messages": messages})
        steps.clear()
        response = await rig.http.post("/v1/chat/completions", content=body)
        assert response.json()["error"]["code"] == "context_length_exceeded", response.text
        longest[name] = max(steps)
    assert not {name: step for name, step in longest.items() if step > LONGEST_STEP_S}


async def test_other_requests_run_while_the_json_of_a_long_body_is_read() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    running = asyncio.create_task(others())
    body = orjson.dumps({"messages": [{"role": "user", "content": "x"}] * 20_000})
    await json_object(body)
    assert turns >= 5
    with pytest.raises(ApiError, match="nested more than"):
        await json_object(orjson.dumps({"messages": [*[{"a": 1}] * 20_000, _nested(150)]}))
    running.cancel()


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_the_body_of_a_refused_request_is_let_go_of_at_once(start: StartRig) -> None:
    """An error must not keep its frames, and so the body, until somebody collects cycles."""
    rig = await start()
    body = {"messages": [{"role": "a role of nobody", "content": [{"type": "text", "text": "Hi"}]}]}
    gc.collect()
    gc.disable()
    try:
        assert (await rig.http.post("/v1/chat/completions", content=orjson.dumps(body))).status_code == 400
        await asyncio.sleep(0.05)
        kept = [found for found in gc.get_objects() if type(found) is dict and found.get("role") == "a role of nobody"]
        assert len(kept) == 1, "the test's own"
    finally:
        gc.enable()


async def test_a_thread_that_writes_a_long_turn_gives_way_to_the_event_loop_soon() -> None:
    from openclaw.server import _SWITCH_S

    assert sys.getswitchinterval() / 10 >= _SWITCH_S


def _prompt(text: str) -> Rendering:
    return [{"role": "user", "content": text}], (), None, {}, 1_000_000


LONG_TEXT = "The quick brown fox jumps over it. " * 20_000


async def test_a_long_prompt_is_rendered_in_another_process(model_dir: Path) -> None:
    chat = ChatFormat.load(model_dir)
    renderer = Renderer(chat)
    await renderer.render(_prompt("begin"), LONG_BYTES + 1)
    began = time.process_time()
    elsewhere = await renderer.render(_prompt(LONG_TEXT), len(LONG_TEXT))
    here_s, began = time.process_time() - began, time.process_time()
    assert elsewhere == chat.render(_prompt(LONG_TEXT)[0])
    assert here_s < (time.process_time() - began) / 2


async def test_a_long_prompt_extends_the_ids_of_the_turn_before_it(model_dir: Path) -> None:
    chat = ChatFormat.load(model_dir)
    renderer = Renderer(chat)
    prompt = await renderer.render(_prompt(LONG_TEXT), len(LONG_TEXT))
    reply = {"role": "assistant", "content": "hello"}
    letters = [token_id for letter in reply["content"] for token_id in chat.encode_plain(letter)]
    assert tuple(letters) != chat.encode_plain(reply["content"])
    sampled = (*letters, *chat.stop_token_ids)
    prior = Turn(
        turn_id="t1",
        session_id="s1",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=tuple(_prompt(LONG_TEXT)[0]),
        prompt_ids=prompt,
        completion=Completion(sampled, (-0.5,) * len(sampled), "hello", "stop", (VersionSpan(1, 0, len(sampled)),)),
        sampling=SamplingParams(),
        reply=reply,
    )
    messages = [*prior.messages, reply, {"role": "user", "content": "Go on"}]
    following = await renderer.render((messages, (), prior, {}, 1_000_000), len(LONG_TEXT))
    assert following[: len(prompt) + len(sampled)] == prompt + sampled
    assert following == chat.render(messages, prior=prior)


async def test_what_the_template_refuses_is_said_from_the_other_process_too(model_dir: Path) -> None:
    renderer = Renderer(ChatFormat.load(model_dir))
    with pytest.raises(PromptTooLong):
        await renderer.render((*_prompt(LONG_TEXT)[:4], 100), len(LONG_TEXT))


async def test_a_long_prompt_is_rendered_although_its_process_is_killed(model_dir: Path) -> None:
    chat = ChatFormat.load(model_dir)
    renderer = Renderer(chat, max_workers=1)
    expected = await renderer.render(_prompt(LONG_TEXT), len(LONG_TEXT))
    rendering = asyncio.create_task(renderer.render(_prompt(LONG_TEXT), len(LONG_TEXT)))
    await asyncio.sleep(0.01)
    [worker] = _workers()
    worker.kill()
    assert await rendering == expected
    assert _workers() != [worker]


async def test_clients_that_leave_have_one_process_started_and_none_ended(model_dir: Path) -> None:
    renderer = Renderer(ChatFormat.load(model_dir), max_workers=1)
    left = [asyncio.create_task(renderer.render(_prompt(LONG_TEXT), len(LONG_TEXT))) for _ in range(8)]
    await asyncio.sleep(0.2)
    [worker] = _workers()
    for rendering in left:
        rendering.cancel()
    await asyncio.wait(left, timeout=20)
    assert all(rendering.cancelled() for rendering in left)
    await renderer.render(_prompt("the next"), LONG_BYTES + 1)
    assert _workers() == [worker]


def _workers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "anyio.to_process" in " ".join(child.cmdline())]
