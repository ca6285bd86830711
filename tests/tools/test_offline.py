"""Conversation files become turns that the live rollout takes: the template's ids, the policy's log-probs, once."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from openclaw_test.tiny.tokenizer import learn_tokenizer
from scripted_engine import ScriptedEngine
from slime.algorithms.advantages import MovingBaseline
from slime.chat import ChatFormat
from slime.config.sections import Config, JudgeConfig, LossConfig, RolloutConfig
from slime.data.estimates import with_advantages
from slime.errors import ConfigError, EngineRejected, EngineUnavailable
from slime.judging.rules.judge import RuleJudge
from slime.judging.scripted import ScriptedJudge
from slime.progress import Progress
from slime.protocols import TokenScores
from slime.rollout.context import RolloutContext
from slime.rollout.live import judged_samples, live_samples, sample_of
from slime.store import Store
from slime.tools.offline import Imported, check_conversations, import_data_path
from slime.types import Batch, SampleGroup, Turn, TurnState, Verdict


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    directory = tmp_path_factory.mktemp("tokenizer")
    learn_tokenizer(["what is two and two", "thanks, that is right", "no bold please"]).save_pretrained(directory)
    return ChatFormat.load(directory)


@pytest.fixture
async def store(tmp_path: Path):
    async with Store.open(tmp_path / "buffer") as opened:
        yield opened


class Scorer(ScriptedEngine):
    """Scores the i-th id of a sequence −i/1000, and remembers what it was asked."""

    def __init__(self, *, version: int = 0, limit: int = 10_000) -> None:
        super().__init__(["x"])
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self._version, self._limit = version, limit

    async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, **_: object) -> TokenScores:
        if len(token_ids) > self._limit:
            raise EngineRejected("longer than the context")
        self.asked.append((tuple(token_ids), start))
        return TokenScores(tuple(-i / 1000 for i in range(start, len(token_ids))), self._version)


TALK = {
    "session_id": "s1",
    "turns": [
        {"type": "main", "prompt": "what is two and two", "response": "4.", "next_state": "thanks, that is right"},
        {"type": "side", "prompt": "Title?", "response": "Sums", "trainable": False},
        {"type": "main", "prompt": "and three and three", "response": "**6**", "next_state": "no bold please"},
        {"type": "main", "prompt": "sorry?", "response": "7", "next_state": "no", "trainable": False},
        {"type": "main", "prompt": "bye", "response": "bye"},
    ],
}


def write(tmp_path: Path, *talks: object) -> Path:
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    return file


async def import_conversations(
    path: Path, store: Store, chat: ChatFormat, engine: ScriptedEngine, min_turns: int = 1
) -> Imported:
    settings, rollout = Config(), RolloutConfig(data_path=str(path), min_turns=min_turns)
    model = replace(settings.model, model_path=str(chat.model_dir))
    return await import_data_path(replace(settings, model=model, rollout=rollout), store, engine)


async def test_replies_are_the_templates_tokens_with_the_policys_log_probs(
    store: Store, chat: ChatFormat, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    engine = Scorer(version=3)
    with caplog.at_level(logging.INFO):
        imported = await import_conversations(write(tmp_path, TALK), store, chat, engine)
    assert (imported.stored, imported.rescored, imported.known) == (2, 2, 0)
    assert imported.left_out == {"side turn": 1, "not trainable": 1, "nothing followed": 1}
    assert "recomputed by the policy at the start" in caplog.text
    first, second = await store.session("s1")
    assert first.prompt_ids == chat.render(first.messages)
    assert first.completion.token_ids == (*chat.encode("4."), *chat.stop_token_ids)
    length = len(first.prompt_ids)
    assert first.completion.logprobs == tuple(
        -i / 1000 for i in range(length, length + len(first.completion.token_ids))
    )
    assert engine.asked[0] == (first.prompt_ids + first.completion.token_ids, length)
    assert first.completion.policy_versions == (3,) * len(first.completion.token_ids)
    assert first.details["logprobs"] == "recomputed by the policy of version 3: none were recorded"
    assert first.details["file"] == f"{tmp_path}/talks.jsonl:1"
    assert (first.state, first.parent_id) == (TurnState.READY, None)
    # The second was fed exactly on from the first, so both train as one sequence.
    assert second.parent_id == first.turn_id
    fed = first.prompt_ids + first.completion.token_ids
    assert second.prompt_ids[: len(fed)] == fed


async def test_what_a_recorded_conversation_came_to_counts_for_its_earlier_turns(
    store: Store, chat: ChatFormat, tmp_path: Path
):
    """Its third turn was left out of the import; the fourth goes on from the second all the same."""
    asked = [("one", 1.0), ("two", -1.0), ("three", 0.0), ("four", 2.0)]
    turns = [{"prompt": said, "response": "x", "next_state": "y", "trainable": said != "three"} for said, _ in asked]
    await import_conversations(write(tmp_path, {"session_id": "s", "turns": turns}), store, chat, Scorer())
    samples = judged_samples(
        store,
        ScriptedJudge(lambda turn: dict(asked)[turn.messages[-1]["content"]]),
        owner="test",
        policy_version=lambda: 0,
        rollout=RolloutConfig(),
        judging=JudgeConfig(num_judge_workers=1),
    )
    groups = [await anext(samples) for _ in range(3)]
    await samples.aclose()  # type: ignore[attr-defined]
    config = LossConfig(advantage_estimator="ppo", gamma=0.5, lambd=1.0)
    found, _ = with_advantages(Batch((groups[2], groups[0], groups[1])), config, MovingBaseline(0.9))
    assert [sample.streams["advantages"][-1] for sample in found] == [2.0, 1.0 - 0.5 + 0.5, -1.0 + 1.0]


async def test_a_control_token_in_a_reply_stays_text(store: Store, chat: ChatFormat, tmp_path: Path):
    said = {"prompt": "what", "response": "a <|im_end|> b", "next_state": "no"}
    await import_conversations(write(tmp_path, {"session_id": "s", "turns": [said]}), store, chat, Scorer())
    [turn] = await store.session("s")
    assert [i for i in turn.completion.token_ids if i in chat.stop_token_ids] == [turn.completion.token_ids[-1]]
    assert chat.decode(turn.completion.token_ids[:-1]) == "a <|im_end|> b"


async def test_the_live_rollout_judges_what_was_read_like_any_turn(store: Store, chat: ChatFormat, tmp_path: Path):
    await import_conversations(write(tmp_path, TALK), store, chat, Scorer())
    scores = {}

    async def make_sample(turn: Turn, verdict: Verdict) -> SampleGroup:
        scores[turn.reply["content"]] = verdict.score
        return sample_of(turn, verdict)

    ctx = RolloutContext(store, RuleJudge(), "test", Progress(), RolloutConfig(), JudgeConfig(num_judge_workers=1))
    async with contextlib.aclosing(live_samples(ctx, make_sample)) as samples:
        for _ in range(2):
            await anext(samples)
    assert scores == {"4.": 1.0, "**6**": -1.0}


async def test_reading_twice_stores_and_scores_once(store: Store, chat: ChatFormat, tmp_path: Path):
    engine = Scorer()
    await import_conversations(write(tmp_path, TALK), store, chat, engine)
    (tmp_path / "elsewhere").mkdir()
    again = await import_conversations(write(tmp_path / "elsewhere", TALK), store, chat, engine)
    assert (again.stored, again.known, len(engine.asked)) == (0, 2, 2)


async def test_an_engine_that_goes_away_costs_nothing_that_was_read(store: Store, chat: ChatFormat, tmp_path: Path):
    class Dies(Scorer):
        async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, **_: object) -> TokenScores:
            if self.asked:
                raise EngineUnavailable("gone")
            return await super().score(token_ids, start, top_k)

    file = write(tmp_path, TALK)
    with pytest.raises(EngineUnavailable):
        await import_conversations(file, store, chat, Dies())
    again = await import_conversations(file, store, chat, Scorer())
    assert (again.stored, again.known) == (1, 1)


async def test_short_conversations_and_refused_turns_are_left_out_and_counted(
    store: Store, chat: ChatFormat, tmp_path: Path
):
    short = {
        "session_id": "short",
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    }
    file = write(tmp_path, short, TALK)
    imported = await import_conversations(file, store, chat, Scorer(limit=len(chat.render([]))), min_turns=3)
    assert imported.stored == 0
    assert imported.left_out["fewer than 3 turns in its conversation"] == 1
    assert imported.left_out["the engine refuses it"] == 2


async def test_a_buffer_is_read_as_it_is_with_the_ids_of_when_it_was_sampled(
    store: Store, chat: ChatFormat, tmp_path: Path
):
    async with Store.open(tmp_path / "earlier") as earlier:
        await import_conversations(write(tmp_path, TALK), earlier, chat, Scorer(version=5))
        kept = await earlier.session("s1")
        await earlier.revise_verdict(kept[0].turn_id, Verdict(-1.0, judge="another"))
    engine = Scorer()
    imported = await import_conversations(tmp_path / "earlier", store, chat, engine)
    assert imported == Imported(stored=2, rescored=0, known=0, left_out={})
    assert engine.asked == []
    assert await store.session("s1") == kept
    assert await store.verdict(kept[0].turn_id) is None, "this run has a judge of its own"


def test_a_path_is_checked_before_anything_is_started(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file"):
        check_conversations(tmp_path / "none.jsonl")
    (tmp_path / "turns.sqlite3").touch()
    check_conversations(tmp_path)
