"""Groups of replies rewarded by a model that compares them: points by hand, advantages, and a judge that is out."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import mean, stdev

import pytest
from prompt_rig import Rig
from slime.algorithms.advantages import MovingBaseline
from slime.compat.prompts.plan import plan_rollout
from slime.compat.prompts.rewards import GroupComparer
from slime.compat.sample import Sample
from slime.config.sections import JudgeConfig, LossConfig
from slime.data.estimates import with_advantages
from slime.errors import ConfigError, EngineUnavailable
from slime.judging.llm.chat_model import Answer
from slime.judging.llm.relative import RelativeJudge
from slime.types import Batch, Message, SamplingParams

ORDER = ("yes", "maybe", "no")
"""From the best."""


class Ranker:
    """A chat model that ranks the replies it is shown, and is out at first if it is told so."""

    name = "ranker"

    def __init__(self, best_first: Callable[[str], int] = ORDER.index, num_failures: int = 0) -> None:
        self.asked: list[str] = []
        self._rank = best_first
        self._num_failures = num_failures

    async def answer(self, messages: list[Message], request_id: str, sampling: SamplingParams) -> Answer:
        if self._num_failures:
            self._num_failures -= 1
            raise EngineUnavailable("down", 0.05)
        self.asked.append(str(messages[1]["content"]))
        replies = re.findall(r'\[REPLY \d+ \w+\]\n{"role": "assistant", "content": "(yes|maybe|no)"', self.asked[-1])
        tiers: dict[int, list[str]] = {}
        for place, reply in enumerate(replies, start=1):
            tiers.setdefault(self._rank(reply), []).append(str(place))
        return Answer(f"\\boxed{{{' > '.join(' = '.join(tiers[rank]) for rank in sorted(tiers))}}}", "stop", self.name)


def flags(rig: Rig, replies: int, prompts: int = 1) -> list[str]:
    return [
        *("--prompt-data", str(rig.write_prompts(4)), "--judge", "llm", "--judge-siblings"),
        *("--num-rollouts-per-prompt", str(replies), "--rollout-batch-size", str(replies * prompts)),
    ]


def compared_by(rig: Rig, model: Ranker) -> None:
    rig.model = model


async def test_a_reply_is_worth_those_it_beats_less_those_that_beat_it(rig: Rig):
    rig.replies = ("maybe", "yes", "no", "yes")
    model = Ranker()
    compared_by(rig, model)
    (group,), run = await rig.groups(1, *flags(rig, 4))
    said = [rig.chat.decode(sample.token_ids[sample.streams["loss_mask"].index(1) :]) for sample in group.samples]
    scores = {"yes": 2 / 3, "maybe": -1 / 3, "no": -1.0}  # yes equals the other yes, and beats two of three
    expected = [scores[re.match(r"[a-z]+", reply).group()] for reply in said]  # type: ignore[union-attr]
    rewards = [float(sample.values["reward"]) for sample in group.samples]
    assert rewards == pytest.approx(expected)
    assert len(model.asked) == 3, "one question a vote"
    assert "question 0" in model.asked[0]
    assert run.batches.metrics()["rollout/raw_reward"] == pytest.approx(0.0)
    batch = Batch((group,))
    samples, _ = with_advantages(batch, LossConfig(advantage_estimator="grpo"), MovingBaseline(0.9))
    for sample, reward in zip(samples, rewards, strict=True):
        [advantage] = {*sample.streams["advantages"][sample.streams["loss_mask"].index(1) :]}
        assert advantage == pytest.approx((reward - mean(rewards)) / stdev(rewards), rel=1e-4)


async def test_a_group_of_equals_teaches_exactly_nothing(rig: Rig):
    rig.replies = ("yes", "maybe", "no", "yes", "no", "yes")
    compared_by(rig, Ranker(best_first=lambda reply: 0))
    (group,), _ = await rig.groups(1, *flags(rig, 6))
    assert [sample.values["reward"] for sample in group.samples] == [0.0] * 6
    samples, _ = with_advantages(Batch((group,)), LossConfig(advantage_estimator="grpo"), MovingBaseline(0.9))
    assert {advantage for sample in samples for advantage in sample.streams["advantages"]} == {0.0}


async def test_opposite_votes_cancel_to_the_last_bit(rig: Rig):
    """Ranks 0, 1, 2, 2 and their reverse: of 4 replies each wins as many thirds as it loses."""

    def forth_and_back(reply: str) -> int:
        return ORDER.index(reply) if len(model.asked) % 2 else -ORDER.index(reply)

    model = Ranker(forth_and_back)
    compared_by(rig, model)
    rig.replies = ("yes", "maybe", "no", "no")
    (group,), _ = await rig.groups(1, *flags(rig, 4), "--majority-vote-n", "2")
    assert [sample.values["reward"] for sample in group.samples] == [0.0] * 4


async def test_a_group_waits_for_a_judge_that_is_out(rig: Rig):
    model = Ranker(num_failures=4)  # of three votes two rounds lack their quorum
    compared_by(rig, model)
    (group,), _ = await rig.groups(1, *flags(rig, 2))
    assert len(model.asked) == 2
    assert sum(float(sample.values["reward"]) for sample in group.samples) == 0.0


async def test_what_cannot_be_compared_stays_without_a_reward():
    model = Ranker()
    comparer = GroupComparer(RelativeJudge(model, JudgeConfig(majority_vote_n=1)), num_workers=1)
    done, failed, rewarded = (Sample(group_index=0, prompt="which?", response="yes") for _ in range(3))
    done.status = rewarded.status = Sample.Status.COMPLETED
    failed.status = Sample.Status.FAILED
    rewarded.reward = 0.5
    await comparer.reward([done, failed, rewarded])
    assert (done.reward, failed.reward, rewarded.reward) == (None, None, 0.5)
    cut = [Sample(group_index=0, response=text, status=Sample.Status.COMPLETED) for text in ("n", "o")]
    await comparer.reward([done, cut])
    assert (done.reward, [part.reward for part in cut]) == (1.0, [-1.0, -1.0])
    [judgement] = done.metadata["reward_details"]["judgements"]
    assert judgement["answer"].startswith(r"\boxed{")
    assert judgement["prompt"][1]["content"] == model.asked[0]


@pytest.mark.parametrize(
    ("replies", "more", "words"),
    [
        (1, [], "compares 2 to 8 replies to a prompt; --num-rollouts-per-prompt is 1"),
        (9, [], "compares 2 to 8 replies to a prompt; --num-rollouts-per-prompt is 9"),
        (2, ["--judge", "rule"], "only a language model compares replies; add --judge llm"),
        (2, ["--custom-rm-path", "r.py"], "--custom-rm-path gives the rewards; leave one of them out"),
        (2, ["--eval-prompt-data", "a=tasks.jsonl", "--eval-interval", "1"], "not how good a model is"),
    ],
)
def test_settings_that_no_comparison_fits_are_refused(rig: Rig, replies: int, more: list[str], words: str):
    with pytest.raises(ConfigError, match=words):
        plan_rollout(rig.config(*flags(rig, replies), *more))
