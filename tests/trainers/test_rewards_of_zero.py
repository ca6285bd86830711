"""A reward of 0.0 is a number to learn from wherever a plug-in or a person gave it; a judge's 0 is no opinion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from learners import trainer_of, write_policy
from slime.algorithms.advantages import MovingBaseline
from slime.compat.conversion import to_group
from slime.compat.sample import Sample
from slime.config.sections import JudgeConfig, LossConfig, RolloutConfig
from slime.data.estimates import with_advantages
from slime.judging.plugin import PluginJudge
from slime.judging.scripted import ScriptedJudge
from slime.plugins.rewards import load_reward
from slime.protocols import Judge
from slime.rollout.live import judged_samples
from slime.store import Store
from slime.types import Batch, Completion, Feedback, SampleGroup, SamplingParams, Turn, TurnKind, Verdict, VersionSpan

REWARD = "def reward(response, next_state):\n    return 1.0 if 'good' in (next_state or response) else 0.0\n"


def turn(number: int) -> Turn:
    return Turn(
        turn_id=f"t{number}",
        session_id=f"s{number}",
        parent_id=None,
        kind=TurnKind.MAIN,
        messages=({"role": "user", "content": "hi"},),
        prompt_ids=(1, 2, 3),
        completion=Completion((4, 5 + number), (-4.1, -4.2), "four", "stop", (VersionSpan(0, 0, 2),)),
        sampling=SamplingParams(),
        reply={"role": "assistant", "content": "four"},
        source="ada",
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """Six conversations: in every second one the reply was good."""
    async with Store.open(tmp_path / "buffer") as opened:
        for number in range(6):
            await opened.append(turn(number))
            await opened.attach(f"t{number}", ({"role": "user", "content": ("bad", "good")[number % 2]},))
        yield opened


def judge_of(tmp_path: Path) -> PluginJudge:
    (tmp_path / "custom_rm.py").write_text(REWARD)
    return PluginJudge(load_reward(str(tmp_path / "custom_rm.py"), {}), timeout_s=5)


async def live(store: Store, judge: Judge, number: int) -> list[SampleGroup]:
    """The first samples of Binary RL on conversations, in the order of their turns."""
    samples = judged_samples(
        store, judge, owner="test", policy_version=lambda: 0, rollout=RolloutConfig(), judging=JudgeConfig()
    )
    taken = []
    async with asyncio.timeout(20):
        async for group in samples:
            taken.append(group)
            if len(taken) == number:
                break
    await samples.aclose()  # type: ignore[attr-defined]
    return sorted(taken, key=lambda group: group.group_id)


def advantages(groups: list[SampleGroup]) -> list[float]:
    """At the last token of each sample, by the default estimator."""
    samples, _ = with_advantages(Batch(tuple(groups)), LossConfig(), MovingBaseline(0.9))
    return [sample.streams["advantages"][-1] for sample in samples]


async def test_rewards_of_zero_and_one_teach_as_much_in_conversations_as_on_prompts(store: Store, tmp_path: Path):
    groups = await live(store, judge_of(tmp_path), 6)
    assert [group.samples[0].values["reward"] for group in groups] == [0.0, 1.0] * 3
    prompts = []
    for number, reward in enumerate([0.0, 1.0] * 3):
        sample = Sample(tokens=[1, 2, 3, 4, 5 + number], response_length=2, rollout_log_probs=[-4.1, -4.2])
        sample.reward, sample.status, sample.metadata = reward, Sample.Status.COMPLETED, {"source": "ada"}
        made = to_group([sample], group_id=f"g{number}", temperature=1.0, version=0)
        assert made is not None
        prompts.append(made)
    assert advantages(groups) == advantages(prompts)
    assert min(advantages(groups)) < 0 < max(advantages(groups))


async def test_an_update_on_rewards_of_zero_and_one_moves_the_policy(store: Store, tmp_path: Path):
    trainer = trainer_of(write_policy(tmp_path / "model"), loss={"kl_loss_coef": 0.0})
    report = trainer.train(Batch(tuple(await live(store, judge_of(tmp_path), 6))))
    assert report.skipped == ""
    assert report.metrics["train/grad_norm"] > 0
    assert report.metrics["reward/mean"] == pytest.approx(0.5)


async def test_zero_from_a_person_is_a_score(store: Store):
    await store.add_feedback("t0", Feedback("score", 0.0))
    (group,) = await live(store, ScriptedJudge(lambda t: Verdict(0.0)), 1)
    assert (group.group_id, group.samples[0].values["reward"]) == ("t0", 0.0)
    verdict = await store.verdict("t0")
    assert verdict is not None
    assert (verdict.judge, verdict.score, verdict.has_reward) == ("person", 0.0, True)


async def test_zero_from_a_judge_is_no_opinion(store: Store):
    (group,) = await live(store, ScriptedJudge(lambda t: Verdict(float(t.turn_id == "t3"))), 1)
    assert group.group_id == "t3"
    assert set(await store.exclusions()) <= {"score 0"}


async def test_a_plug_in_says_nothing_by_a_verdict_of_zero(store: Store, tmp_path: Path):
    source = "from slime.types import Verdict\n\n\ndef reward(turn):\n    return Verdict(float(turn.turn_id == 't3'))\n"
    (tmp_path / "custom_rm.py").write_text(source)
    (group,) = await live(store, PluginJudge(load_reward(str(tmp_path / "custom_rm.py"), {}), timeout_s=5), 1)
    assert group.group_id == "t3"
