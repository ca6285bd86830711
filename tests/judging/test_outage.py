"""A judge that is out for a while: turns wait for it, none is lost, and one that nobody can judge holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from judge_server import listening
from judged_turns import loop_over, turn_with, with_verdict
from slime.config.sections import JudgeConfig
from slime.errors import EngineUnavailable
from slime.judging import retry
from slime.judging.hindsight.hints import HintingJudge, LlmHints
from slime.judging.llm.api_model import ApiModel
from slime.judging.llm.judge import LlmJudge, Vote, without_quorum
from slime.judging.llm.scripted_api import Asked, Fault, Line, ScriptedJudgeApi
from slime.judging.retry import MAX_REFUSALS, CircuitBreaker, Deferrals
from slime.judging.rules.judge import RuleJudge
from slime.protocols import Judge
from slime.rollout.live import live_samples
from slime.store import Store
from slime.types import Feedback, Turn, TurnState, Verdict

GOOD = r"They thank for it. \boxed{1}"
OUT = Verdict(None, (None,), retry_after_s=7.0)
JUDGED = Verdict(1.0, (1.0,), judge="llm")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.open(tmp_path) as opened:
        yield opened


async def fill(store: Store, *names: str) -> None:
    for name in names:
        await store.append(replace(turn_with(None, request=f"Ask {name}."), turn_id=name, session_id=f"of-{name}"))
        await store.attach(name, [{"role": "user", "content": "Thanks!"}])


@contextlib.asynccontextmanager
async def model_of(app: ScriptedJudgeApi, failures: int = 2) -> AsyncIterator[ApiModel]:
    breaker = CircuitBreaker("judge", failures=failures, cooldown_s=0.2)
    async with listening(app) as url, ApiModel(f"{url}/v1", model="m", retries=0, breaker=breaker) as model:
        yield model


@contextlib.asynccontextmanager
async def collecting(
    store: Store, judge: Judge, version: Callable[[], int] = lambda: 0, workers: int = 2
) -> AsyncIterator[list[str]]:
    """The loop at work; the ids of what it gave, as it gives them."""
    given: list[str] = []

    async def collect() -> None:
        turns = live_samples(loop_over(store, judge, version, workers=workers), with_verdict)
        async with contextlib.aclosing(turns):
            async for turn, _ in turns:
                given.append(turn.turn_id)

    task = asyncio.create_task(collect())
    try:
        yield given
        assert not task.done() or task.exception() is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came")


async def until_excluded(store: Store, number: int) -> None:
    for _ in range(500):
        if (await store.counts())[TurnState.EXCLUDED] >= number:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("they never were")


async def test_turns_wait_for_a_judge_that_is_out_and_are_judged_when_it_is_back(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"t{number}" for number in range(6)]
    is_down = [True]
    app = ScriptedJudgeApi(lambda asked: Fault.HTTP_503 if is_down[0] else GOOD)
    await fill(store, *names)
    async with model_of(app) as model:
        judge = LlmJudge(model, JudgeConfig(majority_vote_n=3))
        async with collecting(store, judge) as given:
            await until(lambda: app.fired[Fault.HTTP_503] >= 6)  # it opened, and a trial failed
            counts = await store.counts()
            assert counts[TurnState.EXCLUDED] == 0
            assert counts[TurnState.READY] + counts[TurnState.CLAIMED] == 6
            assert given == []
            is_down[0] = False
            await until(lambda: len(given) == 6)
    assert sorted(given) == names
    for name in names:
        verdict = await store.verdict(name)
        assert verdict is not None
        assert verdict.votes == (1.0, 1.0, 1.0), "who comes during the trial waits for it and is not refused"
    told = [record.message for record in caplog.records if record.message.startswith("circuit")]
    assert [message.split(" name=")[0] for message in told] == ["circuit open", "circuit closed"]
    assert "HTTP 503" in told[0]


async def test_nothing_is_asked_while_the_circuit_is_open(store: Store) -> None:
    app = ScriptedJudgeApi([Fault.HTTP_503])
    await fill(store, "t0", "t1", "t2", "t3")
    breaker = CircuitBreaker("judge", failures=2, cooldown_s=60)
    async with (
        listening(app) as url,
        ApiModel(f"{url}/v1", model="m", retries=0, breaker=breaker) as model,
        collecting(store, LlmJudge(model, JudgeConfig(majority_vote_n=1))),
    ):
        await until(lambda: breaker.is_open)
        asked, moves = len(app.asked), len(await store.history("t0"))
        await asyncio.sleep(1.5)
        assert len(app.asked) == asked
        assert len(await store.history("t0")) <= moves + 3, "claimed and released once more at the most"


async def test_what_is_judged_already_goes_on_while_others_wait(store: Store) -> None:
    """As after a restart in the middle of an outage."""
    await fill(store, "t0", "t1", "t2", "t3", "t4")
    async with collecting(store, RuleJudge()) as given:
        await until(lambda: len(given) == 5)
    await store.release("c")
    await fill(store, "u0", "u1", "u2", "u3")
    await store.add_feedback("t0", Feedback("text", text="Read this again."))  # so it is the first to be judged
    async with (
        model_of(ScriptedJudgeApi([Fault.HTTP_503])) as model,
        collecting(store, LlmJudge(model, JudgeConfig(majority_vote_n=1)), workers=1) as given,
    ):
        await until(lambda: sorted(given) == ["t1", "t2", "t3", "t4"])
    assert (await store.counts())[TurnState.EXCLUDED] == 0


async def test_what_grows_too_old_meanwhile_is_excluded_as_always(store: Store) -> None:
    version, is_down = [0], [True]
    app = ScriptedJudgeApi(lambda asked: Fault.HTTP_503 if is_down[0] else GOOD)
    await fill(store, "t0")
    async with model_of(app) as model:
        judge = LlmJudge(model, JudgeConfig(majority_vote_n=1))
        async with collecting(store, judge, lambda: version[0]) as given:
            await until(lambda: len(app.asked) >= 2)
            version[0], is_down[0] = 5, False  # --max-staleness is 4
            await fill(store, "t1")
            await until_excluded(store, 2)
            assert given == []
    assert (await store.history("t0"))[-1].note.startswith("stale")


async def test_a_turn_that_breaks_a_judge_who_answers_others_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(asked: Asked) -> Line:
        return Fault.HTTP_500 if "Ask poison." in str(asked.body) else GOOD

    monkeypatch.setattr(retry, "MAX_REFUSALS", 1)
    app = ScriptedJudgeApi(script)
    await fill(store, "poison")
    async with (
        model_of(app, failures=50) as model,
        collecting(store, LlmJudge(model, JudgeConfig(majority_vote_n=1))) as given,
    ):
        await until(lambda: app.fired[Fault.HTTP_500] == 1)
        await fill(store, "t1")
        await until_excluded(store, 1)
    last = (await store.history("poison"))[-1]
    assert last.note.startswith("unjudged: 0 of 1 votes are valid")
    assert app.fired[Fault.HTTP_500] <= 3
    assert given == ["t1"]


async def test_a_person_is_not_kept_waiting_by_a_judge_that_is_out(store: Store) -> None:
    await fill(store, "t0")
    await store.add_feedback("t0", Feedback("thumbs", 1.0))
    app = ScriptedJudgeApi([Fault.HTTP_503])
    async with model_of(app) as model, collecting(store, LlmJudge(model, JudgeConfig(majority_vote_n=1))) as given:
        await until(lambda: given == ["t0"])
    verdict = await store.verdict("t0")
    assert verdict is not None
    assert (verdict.score, verdict.judge) == (1.0, "person")


async def test_a_hint_is_waited_for_though_the_score_is_known() -> None:
    turn: Turn = turn_with("Thanks!")
    async with model_of(ScriptedJudgeApi([Fault.HTTP_503])) as model:
        verdict = await HintingJudge(RuleJudge(), LlmHints(model, JudgeConfig(majority_vote_n=1))).judge(turn)
    assert verdict.score == 1.0
    assert (verdict.hint_retry_after_s, verdict.ask_again_after_s) == (0.5, 0.5)
    assert not Deferrals().is_final(turn.turn_id, verdict)


async def test_waits_between_attempts_double_from_what_the_server_names_up_to_eight_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def down(named_s: float) -> None:
        raise EngineUnavailable("down", named_s)

    monkeypatch.setattr("slime.judging.retry.asyncio.sleep", sleep)
    for named_s, waits in ((0.5, [0.5, 1, 2, 4, 8, 8]), (0.0, [0] * 6), (20.0, [20] * 6)):
        slept.clear()
        with pytest.raises(EngineUnavailable):
            await retry.with_retries(partial(down, named_s), retries=6)
        assert len(slept) == 6
        assert all(wait <= seconds <= 1.25 * wait for wait, seconds in zip(waits, slept, strict=True)), slept


def test_a_vote_is_out_or_merely_bad() -> None:
    out, bad, good = Vote(None, retry_after_s=7.0), Vote(None), Vote(1.0)
    config = JudgeConfig(judge_quorum=2)
    waits = [without_quorum([good, out, out], config), without_quorum([bad, bad, out], config)]
    assert [verdict.retry_after_s for verdict in waits if verdict] == [7.0, None], "one more would not have been enough"
    assert without_quorum([good, good, out], config) is None, "nor is it needed"


def test_refusals_count_only_while_others_are_answered() -> None:
    now = [0.0]
    waiting = Deferrals(clock=lambda: now[0])
    for _ in range(20):
        assert not waiting.is_final("a", OUT)
    assert waiting.pause_s == 7.0
    now[0] = 7.0
    assert waiting.pause_s == 0.0
    stands = []
    for _ in range(MAX_REFUSALS):
        assert waiting.is_final("b", JUDGED)
        stands.append(waiting.is_final("a", OUT))
    assert stands == [False, False, True]
    assert not waiting.is_final("a", OUT), "forgotten, should it ever come again"
