"""Stored turns judged again: what may change does, what was trained or said by a person does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slime.config.sections import JudgeConfig
from slime.errors import EngineUnavailable
from slime.judging.llm.chat_model import Answer
from slime.judging.llm.judge import LlmJudge
from slime.judging.scripted import ScriptedJudge
from slime.store import Store
from slime.tools.judges import Rejudged, rejudge
from slime.types import Completion, Message, SamplingParams, Turn, TurnKind, TurnState, Verdict, VersionSpan


def turn(name: str, said: str | None = "no, that is wrong", **changes: object) -> Turn:
    values = {
        "turn_id": name,
        "session_id": "s",
        "parent_id": None,
        "kind": TurnKind.MAIN,
        "messages": ({"role": "user", "content": f"ask {name}"},),
        "prompt_ids": (1, 2),
        "completion": Completion((3,), (-0.5,), "4.", "stop", (VersionSpan(0, 0, 1),)),
        "sampling": SamplingParams(),
        "reply": {"role": "assistant", "content": "4."},
        "next_state": None if said is None else ({"role": "user", "content": said},),
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
async def store(tmp_path: Path):
    """`new` was never judged, `old` scored 1, `zero` 0, `trained` is trained; the other two cannot be judged."""
    async with Store.open(tmp_path / "buffer") as opened:
        for name in ("trained", "old", "zero"):
            await opened.append(turn(name))
        await opened.claim(9, "me", 60)
        await opened.record_verdict("trained", Verdict(1.0, judge="first"), "me")
        await opened.record_verdict("old", Verdict(1.0, judge="first"), "me")
        await opened.record_verdict("zero", Verdict(0.0, judge="first"), "me")
        await opened.mark_trained(["trained"], 1)
        await opened.release("me")
        await opened.append(turn("new"))
        await opened.append(turn("unanswered", None))
        await opened.append(turn("side", kind=TurnKind.SIDE))
        yield opened


async def states(store: Store) -> dict[str, TurnState]:
    return {turn.turn_id: turn.state for turn in await store.session("s")}


async def test_another_judge_revises_what_is_not_trained(store: Store):
    judged = [found async for found in rejudge(store, ScriptedJudge(lambda _: -1.0), num_workers=2)]
    assert {(found.turn_id, found.before, found.after, found.is_revised) for found in judged} == {
        ("trained", 1.0, -1.0, False),
        ("old", 1.0, -1.0, True),
        ("zero", 0.0, -1.0, True),
        ("new", None, -1.0, True),
    }
    now = await states(store)
    assert (now["trained"], now["side"], now["unanswered"]) == (TurnState.TRAINED, TurnState.SERVED, TurnState.SERVED)
    assert now["old"] == now["zero"] == now["new"] == TurnState.JUDGED
    for name, score in (("trained", 1.0), ("zero", -1.0)):
        verdict = await store.verdict(name)
        assert verdict is not None
        assert verdict.score == score


async def test_a_judge_that_is_out_takes_no_verdict_away(store: Store):
    class Nobody:
        name = "nobody"

        async def answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer:
            raise EngineUnavailable("down")

    before = await states(store)
    judged = [found async for found in rejudge(store, LlmJudge(Nobody(), JudgeConfig()))]
    assert {(found.after, found.is_revised) for found in judged} == {(None, False)}
    assert "down" in judged[0].reason
    assert await states(store) == before
    verdict = await store.verdict("old")
    assert verdict is not None
    assert verdict.score == 1.0


async def test_a_dry_run_changes_nothing(store: Store):
    before = await states(store)
    judged: list[Rejudged] = [found async for found in rejudge(store, ScriptedJudge(lambda _: -1.0), dry_run=True)]
    assert [found.is_revised for found in judged] == [False] * 4
    assert await states(store) == before


async def test_another_prompt_reaches_the_model_with_its_nonce(store: Store):
    class Model:
        name = "scripted"
        asked: list[list[Message]] = []  # noqa: RUF012

        async def answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer:
            self.asked.append(messages)
            return Answer("\\boxed{-1}", "stop", "scripted")

    model = Model()
    judge = LlmJudge(model, JudgeConfig(majority_vote_n=1), "Be strict. Marks carry {nonce}; {braces} stay.")
    [judged] = [found async for found in rejudge(store, judge) if found.turn_id == "new"]
    assert judged.after == -1.0
    instructions = model.asked[0][0]["content"]
    assert instructions.startswith("Be strict. Marks carry ")
    assert instructions.endswith("; {braces} stay.")
    assert "{nonce}" not in instructions


def typed(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw.cli", "rejudge", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_as_it_is_typed(store: Store, tmp_path: Path):
    done = typed(tmp_path / "buffer", "--dry-run", "--judge", "rule")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["turn_id"], line["before"], line["after"]) for line in lines] == [
        ("trained", 1.0, -1.0),
        ("old", 1.0, -1.0),
        ("zero", 0.0, -1.0),
        ("new", None, -1.0),
    ]
    assert done.stderr == (
        "4 turns judged again, 0 without a score; 3 scores are other than before, 0 verdicts revised\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--judge", "llm"], "say with --judge-url where the model runs"),
        (["--prompt", "strict.txt"], "the rule judge reads none; use --judge llm"),
        (["--judg", "llm"], "did you mean --judge?"),
    ],
)
async def test_a_mistake_is_one_line(store: Store, tmp_path: Path, arguments: list[str], words: str):
    done = typed(tmp_path / "buffer", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
