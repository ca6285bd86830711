"""From a real store through the live loop into the trainer: what a turn is worth because of the turns after it.

The expected numbers are made here, from the scores, by sums over what follows a turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from learners import trainer_of
from scripted_learner import ScriptedLearner
from slime.algorithms.advantages import MovingBaseline
from slime.config.sections import CheckpointConfig, JudgeConfig, LossConfig, RolloutConfig
from slime.data.estimates import with_advantages
from slime.judging.scripted import ScriptedJudge
from slime.monitor import Monitor
from slime.pipeline import Pipeline
from slime.plugins.losses import load_loss
from slime.progress import Progress
from slime.publisher import Publisher
from slime.rollout.context import RolloutContext, StreamRollout
from slime.rollout.live import live_samples, scored_sample
from slime.store import Store
from slime.types import (
    Batch,
    Completion,
    Message,
    SamplingParams,
    TrainReport,
    Turn,
    TurnKind,
    Verdict,
    VersionSpan,
)
from slime.weights.versions import Versions

NEXT: tuple[Message, ...] = ({"role": "user", "content": "go on"},)
SCORES = {"a1": 1.0, "a2": -1.0, "a3": 0.0, "a4": 1.0, "b1": -1.0, "b2": 0.5, "a5": -0.5, "a6": 2.0, "c1": 0.25}
AFTER = {"a1": ["a2"], "a2": ["a4", "a5"], "a4": ["a6"], "b1": ["b2"]}
"""What follows what: a3 scored nothing; a5 answers a4's request, regenerated; b and c are other people's sessions."""


def turn(name: str, parent: str | None = None, **changes: object) -> Turn:
    number = int(name[1:])
    values = {
        "turn_id": name,
        "session_id": name[0],
        "parent_id": parent,
        "kind": TurnKind.MAIN,
        "messages": ({"role": "user", "content": f"ask {name}"},),
        "prompt_ids": (1, 2, ord(name[0]) % 50, *range(3, 3 + 4 * number)),
        "completion": Completion((7, 8 + number), (-4.0, -4.0), "reply", "stop", (VersionSpan(0, 0, 2),)),
        "sampling": SamplingParams(),
        "reply": {"role": "assistant", "content": "reply"},
        "source": "ada" if name[0] == "a" else "bob",
    }
    return Turn(**{**values, **changes})  # type: ignore[arg-type]


SESSIONS = [
    turn("a1"),
    turn("b1"),
    turn("a2", "a1"),
    turn("a3", "a2"),
    turn("a4", "a3"),
    turn("c1"),
    turn("a5", "a3", kind=TurnKind.BRANCH),
    turn("b2"),  # its client began anew, a summary in place of the history
    turn("a6", "a4"),
]


def advantage(name: str, values: Callable[[str], float], gamma: float, lambda_: float) -> float:
    """δ_k + γλ·δ_{k+1} + …; where two turns follow, their mean."""
    following = AFTER.get(name, [])
    n = max(len(following), 1)
    delta = SCORES[name] + gamma * sum(values(after) for after in following) / n - values(name)
    return delta + gamma * lambda_ * sum(advantage(after, values, gamma, lambda_) for after in following) / n


class Recorder(ScriptedLearner):
    """Keeps the batches that it is given."""

    def __init__(self, save_dir: Path) -> None:
        super().__init__(save_dir)
        self.batches: list[Batch] = []

    async def train(self, batch: Batch) -> TrainReport:
        self.batches.append(batch)
        return await super().train(batch)


@pytest.fixture
async def batches(tmp_path: Path) -> list[Batch]:
    """Everything that was judged, in one batch, as the live loop and its queue gave it to the trainer."""
    return await collect(tmp_path, batch_size=8, updates=1)


async def collect(folder: Path, *, batch_size: int, updates: int) -> list[Batch]:
    delays = random.Random(0)

    class UnevenJudge(ScriptedJudge):
        async def judge(self, turn: Turn) -> Verdict:
            self._delay_s = delays.uniform(0, 0.02)
            return await super().judge(turn)

    async with Store.open(folder / "buffer") as store:
        for stored in SESSIONS:
            await store.append(stored)
            await store.attach(stored.turn_id, NEXT)
        rollout = RolloutConfig(rollout_batch_size=batch_size, num_rollout=updates)

        versions = Versions(folder / "save")
        progress = Progress(versions.staleness)
        judge = UnevenJudge(lambda turn: SCORES[turn.turn_id])
        ctx = RolloutContext(store, judge, "test", progress, rollout, JudgeConfig(num_judge_workers=5))

        async def publish(weights_dir: Path, version: int) -> None: ...

        learner = Recorder(folder / "save")
        pipeline = Pipeline(
            store=store,
            rollout=StreamRollout(lambda: live_samples(ctx, scored_sample)),
            learner=learner,
            publisher=Publisher(versions, learner, publish, progress=progress),
            progress=progress,
            monitor=Monitor(folder / "run"),
            owner="test",
            rollout_config=rollout,
            checkpoint_config=CheckpointConfig(),
        )
        await pipeline.run()
    return learner.batches


def by_turn(batch: Batch, config: LossConfig) -> dict[str, float]:
    samples, _ = with_advantages(batch, config, MovingBaseline(0.9))
    return {sample.turn_ids[0]: sample.streams["advantages"][-1] for sample in samples}


async def test_ppo_at_its_published_settings_over_live_sessions(batches: list[Batch]) -> None:
    found = by_turn(batches[0], LossConfig(advantage_estimator="ppo"))
    assert found == {
        name: pytest.approx(advantage(name, lambda _: 0.0, 0.99, 0.95), abs=1e-12) for name in SCORES if name != "a3"
    }


async def test_reinforce_plus_plus_over_live_sessions(batches: list[Batch]) -> None:
    found = by_turn(batches[0], LossConfig(advantage_estimator="reinforce_plus_plus"))
    to_go = {name: advantage(name, lambda _: 0.0, 0.99, 1.0) for name in found}
    tokens = torch.tensor(list(to_go.values()), dtype=torch.float64).repeat_interleave(2)
    mean, scale = tokens.mean().item(), (tokens.var().item() + 1e-8) ** 0.5
    assert found == {name: pytest.approx((value - mean) / scale, abs=1e-9) for name, value in to_go.items()}


@pytest.mark.parametrize("max_tokens", [1, 8192])
async def test_the_published_compute_gae_over_live_sessions(
    batches: list[Batch], policy_dir: Path, tmp_path: Path, max_tokens: int
) -> None:
    """In the real trainer, every turn in a micro-batch of its own or all in one."""
    file = tmp_path / "custom_loss.py"
    file.write_text(
        "seen = []\n"
        "def compute_loss(policy_logprobs, scalar_rewards, rollout_logprobs):\n"
        "    advantages = compute_gae(scalar_rewards)\n"
        "    seen.extend(zip(scalar_rewards.tolist(), advantages.tolist()))\n"
        "    return -(policy_logprobs * advantages).mean()\n"
    )
    loss_fn = load_loss(str(file))
    trainer_of(policy_dir, loss_fn=loss_fn, max_tokens_per_gpu=max_tokens).train(batches[0])
    expected = {(SCORES[name], round(advantage(name, lambda _: 0.0, 0.99, 0.95), 5)) for name in SCORES if name != "a3"}
    assert {(reward, round(value, 5)) for reward, value in loss_fn.call.function.__globals__["seen"]} == expected


async def test_a_session_cut_over_two_batches_counts_what_is_in_each(tmp_path: Path) -> None:
    batches = await collect(tmp_path, batch_size=4, updates=2)
    assert {name for batch in batches for name in batch.turn_ids} == SCORES.keys() - {"a3"}
    for batch in batches:
        found = by_turn(batch, LossConfig(advantage_estimator="ppo", gamma=1.0, lambd=1.0))
        assert found == {name: pytest.approx(_to_go(name, set(found))) for name in found}


def _to_go(name: str, there: set[str]) -> float:
    """What a turn and those after it came to, leaving out turns that are elsewhere."""
    following, present = [*AFTER.get(name, [])], []
    for after in following:  # grows as it is read
        if after in there:
            present.append(after)
        else:
            following += AFTER.get(after, [])
    later = [_to_go(after, there) for after in present]
    return SCORES[name] + (sum(later) / len(later) if later else 0.0)
