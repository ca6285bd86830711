"""What every engine of the dialect does, as the real SGLang 0.5.23 does it.

A test module starts an engine in a fixture named `rig` and takes all of this by `from conformance import *`. Nothing is
asserted here that SGLang does not do; where ours are stricter, that stands in their own tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from rig import MAX_QUEUED, MAX_RUNNING, PROMPT, VOCAB_SIZE, Rig, generate_fields
from slime.engines.client import HttpEngine
from slime.engines.dialect.reading import StreamReader, join_deltas, parse_completion, read_error, read_object
from slime.engines.dialect.requests import AbortCall, PauseCall, PauseMode
from slime.errors import EngineRejected, EngineUnavailable
from slime.protocols import Delta, Engine, GenerateRequest
from slime.types import SamplingParams

ENDLESS = 0.3  # a temperature at which the random model never ends a reply of its own accord
LONG = 400  # tokens: about a second on the slowest of them
SETTLE_S = 10.0  # within which an engine has noticed that somebody left


@pytest.fixture
async def engine(rig: Rig) -> AsyncIterator[HttpEngine]:
    """A client of the engine under test; afterwards it runs, idle, on its first weights again."""
    async with HttpEngine(rig.url, stall_s=30.0) as client:
        yield client
        await client.resume()
        await client._retried("/abort_request", AbortCall(abort_all=True).body())
        await _until_idle(client)
        if await client.version() != 0:
            await client.update_weights(rig.first_dir, 0)


def _request(name: str, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(name, PROMPT, SamplingParams(**sampling))


async def _until_idle(client: HttpEngine) -> None:
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            return await client.flush_cache()  # refused while requests are under way
        except EngineRejected:
            assert time.monotonic() < deadline, "requests are still running"
            await asyncio.sleep(0.05)


async def _until_free(rig: Rig, rid: str) -> float:
    """Seconds until a request id can be used again, which is when its request has ended."""
    started = time.monotonic()
    async with httpx.AsyncClient(timeout=60) as http:
        while True:
            body = generate_fields(rid=rid, max_new_tokens=1)
            response = await http.post(rig.url + "/generate", json=body)
            if response.status_code == 200:
                return time.monotonic() - started
            assert "uplicate" in response.text
            assert time.monotonic() - started < SETTLE_S, f"{rid} is still running"
            await asyncio.sleep(0.05)


# ── one generation ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_logprobs_and_counts_belong_together(rig: Rig):
    answer = rig.generate(rid="aligned", max_new_tokens=8)
    meta = answer["meta_info"]
    assert meta["id"] == "aligned"
    assert len(answer["output_ids"]) == meta["completion_tokens"] == meta["output_token_logprobs_length"] == 8
    assert [entry[1:] for entry in meta["output_token_logprobs"]] == [[i, None] for i in answer["output_ids"]]
    assert meta["prompt_tokens"] == len(PROMPT)
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["weight_version"] == "default"
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 8}]
    assert meta["input_token_logprobs"] == []


def test_without_return_logprob_there_are_none(rig: Rig):
    answer = rig.generate(return_logprob=False)
    assert "output_token_logprobs" not in answer["meta_info"]
    assert len(answer["output_ids"]) == 8


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_those_of_the_tempered_distribution(rig: Rig, temperature: float):
    answer = rig.generate(max_new_tokens=40, temperature=temperature)
    expected = rig.oracle([*PROMPT, *answer["output_ids"]], 0, temperature)[len(PROMPT) - 1 :]
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(expected, abs=rig.tolerance)


async def test_the_client_gives_what_the_wire_says(rig: Rig, engine: HttpEngine):
    assert isinstance(engine, Engine)
    completion = await engine.generate(_request("client", max_new_tokens=12, stop_token_ids=(0,)))
    assert completion.finish_reason in ("length", "stop")
    expected = rig.oracle([*PROMPT, *completion.token_ids], 0, 1.0)[len(PROMPT) - 1 :]
    assert list(completion.logprobs) == pytest.approx(expected, abs=rig.tolerance)
    assert completion.policy_versions == (0,) * len(completion.token_ids)


def test_greedy_is_deterministic_and_reports_untempered_logprobs(rig: Rig):
    first, second = (rig.generate(temperature=0.0, max_new_tokens=16) for _ in range(2))
    assert first["output_ids"] == second["output_ids"]
    assert first["text"] == second["text"]
    expected = rig.oracle([*PROMPT, *first["output_ids"]], 0, 1.0)[len(PROMPT) - 1 :]
    assert [e[0] for e in first["meta_info"]["output_token_logprobs"]] == pytest.approx(expected, abs=rig.tolerance)


def test_top_logprobs_stand_beside_every_token_the_likeliest_first(rig: Rig):
    meta = rig.generate(max_new_tokens=3, top_logprobs_num=4, token_ids_logprob=[5, 7], logprob_start_len=26)[
        "meta_info"
    ]
    rows = meta["output_top_logprobs"]
    assert [len(row) for row in rows] == [4, 4, 4]
    for row in rows:
        assert [e[0] for e in row] == sorted((e[0] for e in row), reverse=True)
    assert [[e[1] for e in row] for row in meta["output_token_ids_logprobs"]] == [[5, 7]] * 3
    assert meta["input_top_logprobs"][0] is None
    assert [len(row) for row in meta["input_top_logprobs"][1:]] == [4, 4, 4]
    assert meta["input_token_ids_logprobs"][0] is None
    assert [[e[1] for e in row] for row in meta["input_token_ids_logprobs"][1:]] == [[5, 7]] * 3


# ── where a reply ends ──────────────────────────────────────────────────────────────────────────────────────────────


def _greedy(rig: Rig, **fields: Any) -> dict[str, Any]:
    return rig.generate(temperature=0.0, max_new_tokens=48, **fields)


def _stop_text(text: str) -> str:
    """A visible character of a reply, not its first."""
    return next(char for char in text[1:] if char.isascii() and char.isprintable() and char != text[0])


def test_a_stop_string_is_cut_from_the_text_and_not_from_the_ids(rig: Rig):
    free = _greedy(rig)
    stop = _stop_text(free["text"])
    cut, kept = _greedy(rig, stop=[stop]), _greedy(rig, stop=[stop], no_stop_trim=True)
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert cut["text"] == free["text"][: free["text"].index(stop)]
    assert kept["text"] == cut["text"] + stop
    assert cut["output_ids"] == kept["output_ids"] == free["output_ids"][: len(cut["output_ids"])]
    assert len(cut["meta_info"]["output_token_logprobs"]) == len(cut["output_ids"]) < 48


def test_a_stop_id_ends_the_ids_and_is_not_in_the_text(rig: Rig):
    free = _greedy(rig, ignore_eos=False)
    matched = free["output_ids"][6]
    first = free["output_ids"].index(matched)
    stopped = _greedy(rig, ignore_eos=False, stop_token_ids=[matched])
    assert stopped["output_ids"] == free["output_ids"][: first + 1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}
    assert free["text"].startswith(stopped["text"].rstrip("\ufffd"))


def test_ignore_eos_ignores_stop_ids_too(rig: Rig):
    matched = _greedy(rig)["output_ids"][6]
    assert len(_greedy(rig, stop_token_ids=[matched])["output_ids"]) == 48


def test_the_end_token_is_sampled_counted_and_left_out_of_the_text(rig: Rig):
    for _ in range(5):  # about one in three hundred tokens is it
        answer = rig.generate(ignore_eos=False, max_new_tokens=1500, temperature=2.0)
        if answer["meta_info"]["finish_reason"]["type"] == "stop":
            break
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": answer["output_ids"][-1]}
    assert "<|im_end|>" not in answer["text"]
    assert len(answer["meta_info"]["output_token_logprobs"]) == len(answer["output_ids"])


# ── scoring ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("start", [0, 7, len(PROMPT) - 1, len(PROMPT)])
def test_prompt_logprobs_begin_with_nothing(rig: Rig, start: int):
    answer = rig.generate(max_new_tokens=0, logprob_start_len=start, temperature=0.5)
    entries = answer["meta_info"]["input_token_logprobs"]
    assert answer["output_ids"] == []
    assert [entry[1] for entry in entries] == list(PROMPT[start:])
    assert [entry[0] for entry in entries[:1]] == [None] * len(entries[:1])
    expected = rig.oracle(PROMPT, 0, 1.0)[start:]  # of the model itself, whatever the temperature
    assert [entry[0] for entry in entries[1:]] == pytest.approx(expected, abs=rig.tolerance)


async def test_score(rig: Rig, engine: HttpEngine):
    scores = await engine.score(PROMPT, 10, top_k=3)
    assert list(scores.logprobs) == pytest.approx(rig.oracle(PROMPT, 0, 1.0)[9:], abs=rig.tolerance)
    assert [len(row) for row in scores.top_ids] == [3] * (len(PROMPT) - 10)
    position = 4
    asked = [*PROMPT[: 10 + position], scores.top_ids[position][0]]
    assert scores.top_logprobs[position][0] == pytest.approx(rig.oracle(asked, 0, 1.0)[-1], abs=rig.tolerance)
    assert scores.version == 0


async def test_the_last_id_of_the_vocabulary_is_scored_as_any_other(rig: Rig, engine: HttpEngine):
    ids = [*PROMPT, VOCAB_SIZE - 1, *PROMPT[:2], VOCAB_SIZE - 1]
    scores = await engine.score(ids, 3)
    assert list(scores.logprobs) == pytest.approx(rig.oracle(ids, 0, 1.0)[2:], abs=rig.tolerance)


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _events(rig: Rig, **fields: Any) -> list[bytes]:
    with httpx.stream(
        "POST", rig.url + "/generate", json=generate_fields(stream=True, **fields), timeout=60
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return response.read().split(b"\n\n")


def test_a_stream_says_what_the_answer_says(rig: Rig):
    *events, done, rest = _events(rig, temperature=0.0, max_new_tokens=24)
    assert (done, rest) == (b"data: [DONE]", b"")
    payloads = [orjson.loads(event.removeprefix(b"data: ")) for event in events]
    assert len(payloads) > 12, "tokens should leave as they are sampled"
    assert all(payload["meta_info"]["finish_reason"] is None for payload in payloads[:-1])
    assert all("weight_versions" not in payload["meta_info"] for payload in payloads[:-1])
    assert payloads[-1]["meta_info"]["weight_versions"] == [{"version": "default", "start": 0, "end": 24}]
    whole = rig.generate(temperature=0.0, max_new_tokens=24)
    reader = StreamReader()
    streamed = join_deltas([reader.feed(payload) for payload in payloads])
    unstreamed = parse_completion(whole)
    assert (streamed.token_ids, streamed.text) == (unstreamed.token_ids, unstreamed.text)
    assert streamed.logprobs == pytest.approx(unstreamed.logprobs, abs=rig.tolerance)


async def test_a_streamed_stop_string_is_never_shown(rig: Rig, engine: HttpEngine):
    text = _greedy(rig)["text"]
    stop = _stop_text(text) + "\x00never"
    whole = await engine.generate(_request("whole", temperature=0.0, max_new_tokens=48, stop=(stop, _stop_text(text))))
    shown = [
        d
        async for d in engine.stream(
            _request("shown", temperature=0.0, max_new_tokens=48, stop=(stop, _stop_text(text)))
        )
    ]
    assert "".join(delta.text for delta in shown) == whole.text
    assert join_deltas(shown).finish_reason == "stop"


async def test_leaving_a_stream_ends_the_request(rig: Rig):
    async with httpx.AsyncClient(timeout=60) as http:
        body = generate_fields(rid="left", stream=True, max_new_tokens=1900)
        async with http.stream("POST", rig.url + "/generate", json=body) as response:
            async for _ in response.aiter_bytes():
                break
    assert await _until_free(rig, "left") < SETTLE_S


async def test_closing_the_clients_iterator_ends_the_request(rig: Rig, engine: HttpEngine):
    stream = engine.stream(_request("closed", max_new_tokens=1900, temperature=ENDLESS))
    async with contextlib.aclosing(stream) as deltas:  # type: ignore[type-var]
        async for _ in deltas:
            break
    assert await _until_free(rig, "closed") < 2.0


async def test_cancelling_a_generation_ends_the_request(rig: Rig, engine: HttpEngine):
    task = asyncio.create_task(engine.generate(_request("cancelled", max_new_tokens=1900, temperature=ENDLESS)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _until_free(rig, "cancelled") < 2.0


# ── abort, pause, continue ──────────────────────────────────────────────────────────────────────────────────────────


async def _collect(engine: HttpEngine, request: GenerateRequest, deltas: list[Delta]) -> None:
    async for delta in engine.stream(request):
        deltas.append(delta)


async def _started(engine: HttpEngine, name: str, num_tokens: int = LONG) -> tuple[asyncio.Task[None], list[Delta]]:
    """A long stream that has begun."""
    deltas: list[Delta] = []
    request = _request(name, max_new_tokens=num_tokens, temperature=ENDLESS)
    task = asyncio.create_task(_collect(engine, request, deltas))
    deadline = time.monotonic() + 10
    while len(deltas) < 5:
        assert time.monotonic() < deadline, "no tokens"
        assert not task.done(), "the stream ended too early"
        await asyncio.sleep(0.01)
    return task, deltas


async def _ongoing(
    engine: HttpEngine, name: str, num_tokens: int = LONG, **fields: Any
) -> tuple[asyncio.Task[Any], str]:
    """A long unstreamed generation, under way, that no end token can cut short."""
    body = generate_fields(rid=name, max_new_tokens=num_tokens, **fields)
    task = asyncio.create_task(engine._fetch("/generate", orjson.dumps(body), 60.0))
    await asyncio.sleep(0.25)
    return task, name


async def test_abort_ends_a_request_with_what_it_has(rig: Rig, engine: HttpEngine):
    task, name = await _ongoing(engine, "aborted", 1900)
    await engine.abort(name)
    answer = orjson.loads(await asyncio.wait_for(task, SETTLE_S))
    completion = parse_completion(answer)
    assert completion.finish_reason == "abort"
    assert 0 < len(completion.token_ids) < 1900
    expected = rig.oracle([*PROMPT, *completion.token_ids], 0, 1.0)[len(PROMPT) - 1 :]
    assert list(completion.logprobs) == pytest.approx(expected, abs=rig.tolerance)


async def test_abort_all_ends_them_all(engine: HttpEngine):
    tasks = [(await _ongoing(engine, f"all-{i}", 1900))[0] for i in range(3)]
    await engine._retried("/abort_request", AbortCall(abort_all=True).body())
    answers = [orjson.loads(await asyncio.wait_for(task, SETTLE_S)) for task in tasks]
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * 3


async def test_aborting_nobody_is_harmless(engine: HttpEngine):
    await engine.abort("there is no such request")
    completion = await engine.generate(_request("after", max_new_tokens=4))
    assert completion.finish_reason != "abort"


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_paused_request_waits_and_goes_on(rig: Rig, engine: HttpEngine, mode: PauseMode):
    task, _ = await _ongoing(engine, f"paused-{mode}", LONG)
    await engine._retried("/pause_generation", PauseCall(mode=mode).body())
    late = asyncio.create_task(engine.generate(_request(f"late-{mode}", max_new_tokens=4)))
    await asyncio.sleep(1.0)
    assert not task.done()
    assert not late.done(), "a request that comes during a pause waits too"
    await engine.resume()
    answer = orjson.loads(await asyncio.wait_for(task, 30))
    assert len(answer["output_ids"]) == LONG
    expected = rig.oracle([*PROMPT, *answer["output_ids"]], 0, 1.0)[len(PROMPT) - 1 :]
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(expected, abs=rig.tolerance)
    assert (await asyncio.wait_for(late, 30)).finish_reason in ("length", "stop")


async def test_pausing_by_abort_ends_what_runs(engine: HttpEngine):
    task, _ = await _ongoing(engine, "ended", 1900)
    await engine._retried("/pause_generation", PauseCall(mode="abort").body())
    answer = orjson.loads(await asyncio.wait_for(task, SETTLE_S))
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    await engine.resume()
    assert (await engine.generate(_request("after", max_new_tokens=2))).finish_reason in ("length", "stop")


async def test_pausing_and_continuing_twice_is_harmless(engine: HttpEngine):
    for _ in range(2):
        await engine._retried("/pause_generation", PauseCall(mode="retract").body())
    for _ in range(2):
        await engine.resume()
    assert (await engine.generate(_request("twice", max_new_tokens=2))).token_ids


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_swap_under_way_labels_every_token(rig: Rig, engine: HttpEngine):
    task, _ = await _ongoing(engine, "swapped", LONG)
    await engine.update_weights(rig.next_dir, 7)
    completion = parse_completion(orjson.loads(await asyncio.wait_for(task, 30)))
    assert [span.version for span in completion.spans] == [0, 7]
    assert len(completion.token_ids) == LONG
    ids, border = [*PROMPT, *completion.token_ids], completion.spans[1].start
    before = rig.oracle(ids, 0, 1.0)[len(PROMPT) - 1 :][:border]
    after = rig.oracle(ids, 7, 1.0)[len(PROMPT) - 1 :][border:]
    assert list(completion.logprobs[:border]) == pytest.approx(before, abs=rig.tolerance)
    assert list(completion.logprobs[border:]) == pytest.approx(after, abs=rig.tolerance)


async def test_a_stream_tells_its_spans_at_the_end(rig: Rig, engine: HttpEngine):
    task, deltas = await _started(engine, "streamed", LONG)
    await engine.update_weights(rig.next_dir, 8)
    await asyncio.wait_for(task, 30)
    completion = join_deltas(deltas)
    assert [span.version for span in completion.spans] == [0, 8]
    assert all(not delta.spans for delta in deltas[:-1])


async def test_in_place_weights_change_between_two_tokens(rig: Rig):
    async with HttpEngine(rig.url, pause_mode="in_place") as engine:
        task, _ = await _ongoing(engine, "in-place", LONG)
        await engine.update_weights(rig.next_dir, 3)
        completion = parse_completion(orjson.loads(await asyncio.wait_for(task, 30)))
        assert [span.version for span in completion.spans] == [0, 3]
        await engine.update_weights(rig.first_dir, 0)
        await engine.flush_cache()


async def test_new_weights_are_what_is_sampled_from(rig: Rig, engine: HttpEngine):
    await engine.update_weights(rig.next_dir, 1)
    assert await engine.version() == 1
    completion = await engine.generate(_request("new", max_new_tokens=24))
    assert set(completion.policy_versions) == {1}
    expected = rig.oracle([*PROMPT, *completion.token_ids], 1, 1.0)[len(PROMPT) - 1 :]
    assert list(completion.logprobs) == pytest.approx(expected, abs=rig.tolerance)
    assert (await engine.score(PROMPT, 3)).version == 1


async def test_weights_that_cannot_be_loaded_change_nothing(rig: Rig, engine: HttpEngine, tmp_path: Any):
    task, _ = await _ongoing(engine, "unharmed", LONG)
    with pytest.raises(EngineRejected) as caught:
        await engine.update_weights(tmp_path / "nothing here", 9)
    assert caught.value.status == 400
    assert await engine.version() == 0
    completion = parse_completion(orjson.loads(await asyncio.wait_for(task, 30)))
    assert [span.version for span in completion.spans] == [0]
    expected = rig.oracle([*PROMPT, *completion.token_ids], 0, 1.0)[len(PROMPT) - 1 :]
    assert list(completion.logprobs) == pytest.approx(expected, abs=rig.tolerance)


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_REQUESTS = {
    "no ids": {"input_ids": []},
    "ids that are text": {"input_ids": "abc"},
    "negative temperature": {"sampling_params": {"temperature": -1}},
    "top_k 0": {"sampling_params": {"top_k": 0}},
    "top_p 0": {"sampling_params": {"top_p": 0}},
    "negative length": {"sampling_params": {"max_new_tokens": -1}},
    "unknown sampling parameter": {"sampling_params": {"temprature": 1.0}},
    "start beyond the prompt": {"return_logprob": True, "logprob_start_len": 31},
    "longer than the context": {"input_ids": [1] * 2100},
    "longer than the context with the reply": {"input_ids": [1] * 2000, "sampling_params": {"max_new_tokens": 100}},
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_refused_with_a_reason(rig: Rig, name: str):
    response = rig.post("/generate", {"input_ids": list(PROMPT), **BAD_REQUESTS[name]})
    assert response.status_code == 400
    error = read_error(response.status_code, response.content)
    assert isinstance(error, EngineRejected)
    assert len(str(error)) > 30


@pytest.mark.parametrize("body", [b"{nope", b"[1]", b'"text"'])
def test_a_body_that_is_no_object_is_refused(rig: Rig, body: bytes):
    response = httpx.post(rig.url + "/generate", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400


def test_a_bad_stream_is_refused_in_an_event(rig: Rig):
    event, done, _ = _events(rig, temperature=-1)
    assert done == b"data: [DONE]"
    with pytest.raises(EngineRejected, match="temperature"):
        read_object(event.removeprefix(b"data: "))


async def test_the_client_raises_what_the_engine_refuses(engine: HttpEngine):
    with pytest.raises(EngineRejected):
        await engine.generate(GenerateRequest("long", (1,) * 2100, SamplingParams()))
    with pytest.raises(EngineRejected):
        _ = [d async for d in engine.stream(GenerateRequest("long", (1,) * 2100, SamplingParams()))]


async def test_a_request_id_is_not_used_twice_at_once(rig: Rig, engine: HttpEngine):
    task, name = await _ongoing(engine, "same")
    with pytest.raises(EngineRejected, match="uplicate"):
        await engine.generate(_request(name))
    await task


async def test_a_full_engine_says_so(engine: HttpEngine):
    running = []
    for i in range(MAX_RUNNING):
        body = generate_fields(rid=f"running-{i}", max_new_tokens=1900, stream=True)
        running.append(engine._events("/generate", orjson.dumps(body)))
        await anext(running[-1])  # it has left the queue
    queued = [(await _ongoing(engine, f"queued-{i}", 1900))[0] for i in range(MAX_QUEUED)]
    with pytest.raises(EngineUnavailable, match="503"):
        await engine.generate(_request("one too many"))
    with pytest.raises(EngineUnavailable, match="503"):
        _ = [d async for d in engine.stream(_request("one too many again"))]
    await engine._retried("/abort_request", AbortCall(abort_all=True).body())
    answers = [orjson.loads(await asyncio.wait_for(task, SETTLE_S)) for task in queued]
    async with asyncio.timeout(SETTLE_S):
        answers += [[event async for event in events][-1] for events in running]
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * len(answers)
    assert [parse_completion(answer).finish_reason for answer in answers[:MAX_QUEUED]] == ["abort"] * MAX_QUEUED


def test_unknown_paths_methods_and_modes(rig: Rig):
    assert rig.post("/no_such_thing").status_code == 404
    assert httpx.get(rig.url + "/generate").status_code == 405
    assert rig.post("/pause_generation", {"mode": "gently"}).status_code == 400


# ── health and information ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health(rig: Rig, path: str):
    assert httpx.get(rig.url + path, timeout=30).status_code == 200


def test_information(rig: Rig):
    info = httpx.get(rig.url + "/server_info", timeout=30).json()
    assert info["model_path"] == str(rig.first_dir)
    assert (info["max_running_requests"], info["max_queued_requests"]) == (MAX_RUNNING, MAX_QUEUED)
    assert info["incremental_streaming_output"] is True
    assert info["version"]
    model = httpx.get(rig.url + "/model_info", timeout=30).json()
    assert model["weight_version"] == "default"
    assert model["is_generation"] is True


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flush_cache(rig: Rig, method: str):
    assert httpx.request(method, rig.url + "/flush_cache", timeout=30).status_code == 200
    assert rig.generate(max_new_tokens=1)["meta_info"]["cached_tokens"] == 0
