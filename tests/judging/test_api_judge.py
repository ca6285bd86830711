"""A judge at an OpenAI-compatible URL, over real sockets: what is sent, what is retried, what becomes no score."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from judge_server import listening
from judged_turns import turn_with
from slime.config.sections import JudgeConfig
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.script import Script as EngineScript
from slime.engines.scripted.server import ScriptedApp
from slime.errors import EngineRejected, EngineUnavailable
from slime.judging.llm.api_model import ApiModel
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.scripted_api import Asked, Fault, Line, ScriptedJudgeApi
from slime.judging.retry import CircuitBreaker
from slime.rollout.judge_endpoint import openai_base
from slime.types import SamplingParams, Verdict

GOOD = r"They thank for it. \boxed{1}"


@contextlib.asynccontextmanager
async def model_of(app: ScriptedJudgeApi, **options: Any) -> AsyncIterator[ApiModel]:
    async with listening(app) as url, ApiModel(f"{url}/v1", **options) as model:
        yield model


async def verdict_of(app: ScriptedJudgeApi, *, votes: int = 1, timeout_s: float = 20.0, **options: Any) -> Verdict:
    config = JudgeConfig(majority_vote_n=votes, judge_timeout_s=timeout_s)
    async with model_of(app, **options) as model:
        return await LlmJudge(model, config).judge(turn_with("Thanks!"))


async def test_vote_is_asked_for_with_key_model_and_settings_and_kept() -> None:
    app = ScriptedJudgeApi([GOOD], model="judge-9b")
    verdict = await verdict_of(app, api_key="sk-secret")
    assert (verdict.score, verdict.votes) == (1.0, (1.0,))
    [asked] = app.asked
    assert asked.api_key == "sk-secret"
    assert asked.body["model"] == "judge-9b", "the first model it serves, when none is named"
    assert (asked.body["max_tokens"], asked.body["temperature"]) == (4096, 0.6)
    [judgement] = verdict.judgements
    assert (judgement.answer, judgement.model) == (GOOD, "judge-9b")
    assert list(judgement.prompt) == asked.body["messages"]
    assert judgement.latency_s > 0
    assert "sk-secret" not in str(verdict)


@pytest.mark.parametrize("fault", [Fault.HTTP_429, Fault.HTTP_500, Fault.HTTP_503, Fault.CUT])
async def test_passing_fault_is_retried_with_backoff(fault: Fault) -> None:
    app = ScriptedJudgeApi([fault, fault, GOOD])
    verdict = await verdict_of(app, retries=2, model="m")
    assert verdict.score == 1.0, verdict.reason
    assert app.fired == {fault: 2}
    assert len(app.asked) == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.HTTP_500, "HTTP 500"),
        (Fault.HTTP_401, "HTTP 401"),
        (Fault.HTTP_400, "HTTP 400"),
        (Fault.CUT, "RemoteProtocolError"),
        (Fault.BAD_JSON, "unreadable|no chat completion"),
        (Fault.BAD_SHAPE, "no chat completion"),
        (Fault.UNFINISHED, "cut off"),
        (Fault.HANG, "no answer within 0.5 s"),
    ],
)
async def test_lasting_fault_is_a_failed_vote_and_never_a_score(fault: Fault, words: str) -> None:
    app = ScriptedJudgeApi(lambda asked: fault)
    verdict = await verdict_of(app, votes=3, timeout_s=0.5 if fault is Fault.HANG else 20.0, retries=0, model="m")
    assert verdict.score is None
    assert verdict.votes == (None, None, None)
    assert app.fired == {fault: 3}
    assert verdict.reason.startswith("0 of 3 votes are valid, 2 are needed"), verdict.reason
    [failure] = {judgement.failure for judgement in verdict.judgements}
    assert any(word in failure for word in words.split("|")), failure


async def test_one_judge_that_fails_is_one_vote_that_failed() -> None:
    lines: list[Line] = [Fault.HTTP_500, GOOD, GOOD]
    app = ScriptedJudgeApi(lines)
    verdict = await verdict_of(app, votes=3, retries=0, model="m")
    assert verdict.score == 1.0
    assert sorted(map(str, verdict.votes)) == ["1.0", "1.0", "None"]
    assert app.fired == {Fault.HTTP_500: 1}


async def test_refusal_is_not_repeated_and_does_not_open_the_circuit() -> None:
    app = ScriptedJudgeApi(lambda asked: Fault.HTTP_400)
    async with model_of(app, model="m", retries=3, breaker=CircuitBreaker("judge", failures=1)) as model:
        for _ in range(3):
            with pytest.raises(EngineRejected, match="HTTP 400"):
                await model.answer([{"role": "user", "content": "Hi"}], "r", SamplingParams())
    assert app.fired == {Fault.HTTP_400: 3}


async def test_a_server_that_hangs_is_out() -> None:
    app, breaker = ScriptedJudgeApi([Fault.HANG]), CircuitBreaker("judge", failures=1)
    async with model_of(app, model="m", retries=0, timeout_s=0.2, breaker=breaker) as model:
        with pytest.raises(EngineUnavailable, match=r"no answer within 0\.2 s|Timeout"):
            await model.answer([{"role": "user", "content": "Hi"}], "r", SamplingParams())
    assert breaker.is_open


async def test_settings_that_a_model_does_not_take_are_left_out_from_then_on() -> None:
    app = ScriptedJudgeApi([GOOD], refuses=frozenset({"max_tokens", "temperature"}))
    async with model_of(app, model="m") as model:
        for _ in range(2):
            await model.answer([{"role": "user", "content": "Hi"}], "r", SamplingParams(max_new_tokens=77))
    assert [asked.body["max_completion_tokens"] for asked in app.asked] == [77, 77]
    assert not any("temperature" in asked.body for asked in app.asked)


async def test_open_circuit_asks_nobody_then_tries_once() -> None:
    now = [100.0]
    is_down = [True]

    def script(asked: Asked) -> Line:
        return Fault.HTTP_503 if is_down[0] else GOOD

    app = ScriptedJudgeApi(script)
    breaker = CircuitBreaker("judge", failures=3, cooldown_s=10, clock=lambda: now[0])
    async with model_of(app, model="m", retries=0, breaker=breaker) as model:

        async def ask() -> str:
            return (await model.answer([{"role": "user", "content": "Hi"}], "r", SamplingParams())).text

        for _ in range(5):
            with pytest.raises(EngineUnavailable):
                await ask()
        assert len(app.asked) == 3, "two of five were not even sent"
        now[0] += 10.1
        outcomes = await asyncio.gather(*(ask() for _ in range(4)), return_exceptions=True)
        assert all(isinstance(outcome, EngineUnavailable) for outcome in outcomes)
        assert len(app.asked) == 4, "one trial"
        now[0] += 10.1
        with pytest.raises(EngineUnavailable, match="left alone"):
            await ask()
        now[0] += 10.1  # twice the cooldown has passed since the trial
        is_down[0] = False
        assert await ask() == GOOD
        assert await asyncio.gather(*(ask() for _ in range(4))) == [GOOD] * 4
        assert not breaker.is_open


async def test_late_judge_costs_its_deadline_and_no_more() -> None:
    app = ScriptedJudgeApi(lambda asked: Fault.HANG)
    start = time.monotonic()
    verdict = await verdict_of(app, votes=5, timeout_s=0.3, model="m")
    assert verdict.score is None
    assert time.monotonic() - start < 5


async def test_judge_that_is_not_there_leaves_the_turn_unjudged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = JudgeConfig(majority_vote_n=1, judge_timeout_s=5)
    async with ApiModel(f"http://127.0.0.1:{port}/v1", retries=0) as model:
        verdict = await LlmJudge(model, config).judge(turn_with("Thanks!"))
    assert verdict.score is None
    assert "ConnectError" in verdict.reason


async def test_client_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-somebody-else")
    app = ScriptedJudgeApi([GOOD])
    await verdict_of(app, model="m")
    assert app.asked[0].api_key == "none"
    assert isinstance(openai.AsyncOpenAI(api_key="x").organization, str), "the client would have looked"


async def test_url_says_or_shows_what_it_is() -> None:
    assert await openai_base("https://api.example/v1/") == "https://api.example/v1"
    assert await openai_base("https://api.example/v1beta/openai") == "https://api.example/v1beta/openai"
    async with listening(ScriptedJudgeApi([GOOD])) as url:
        assert await openai_base(url) == f"{url}/v1"
    async with listening(ScriptedApp(ScriptedCore(EngineScript()))) as url:
        assert await openai_base(url) is None
