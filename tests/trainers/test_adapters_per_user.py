"""Two users who want the opposite of each other: each gets what they want, and nothing of the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learners import trainer_of
from slime.config.sections import LoraConfig
from slime.data.sample_queue import SampleQueue
from slime.errors import TrainerError
from slime.trainers.per_user import UserTrainers
from slime.types import Batch, Sample, SampleGroup
from slime.weights.adapters import merge_adapter, verify_adapter
from slime.weights.directories import read_manifest
from slime.weights.versions import Versions
from transformers import AutoModelForCausalLM

PROMPT, LIKED_BY_ADA, LIKED_BY_BOB = (5, 6, 7), 11, 22
LORA = LoraConfig(use_lora=True, lora_rank=4, adapter_per="user")


def sample(user: str, reply: int, reward: float, name: str = "", version: int = 0) -> Sample:
    return Sample(
        token_ids=(*PROMPT, reply),
        streams={
            "loss_mask": (0, 0, 0, 1),
            "rollout_logprobs": (0.0, 0.0, 0.0, -3.0),
            "policy_versions": (-1, -1, -1, version),
        },
        values={"reward": reward, "temperature": 1.0},
        turn_ids=(name or f"{user}{reply}",),
        source=user,
    )


def batch(user: str, step: int = 0) -> Batch:
    """A user's opinion of both replies."""
    likes = {"ada": LIKED_BY_ADA, "bob": LIKED_BY_BOB}[user]
    samples = [sample(user, r, 1.0 if r == likes else -1.0, f"{user}{step}x{r}") for r in (LIKED_BY_ADA, LIKED_BY_BOB)]
    return Batch(tuple(SampleGroup(f"g{i}", (one,)) for i, one in enumerate(samples)))


def user_trainers(policy_dir: Path) -> UserTrainers:
    loss = {"kl_loss_coef": 0.02, "baseline": "none", "eps_clip": 0.9, "eps_clip_high": 9.0}
    return UserTrainers(trainer_of(policy_dir, lora=LORA, lr=3e-2, loss=loss))


def preference(model_dir: Path) -> float:
    """log p(what Ada likes) − log p(what Bob likes) after the prompt."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(PROMPT)[None]).logits[0, -1]
    return float(logits[LIKED_BY_ADA] - logits[LIKED_BY_BOB])


def test_each_gets_what_they_like_and_nothing_of_the_other(policy_dir: Path, tmp_path: Path) -> None:
    trainers = user_trainers(policy_dir)
    trainers.resume(tmp_path / "both")
    for step in range(6):
        for user in ("ada", "bob"):
            report = trainers.train(batch(user, step))
            trainers.save(tmp_path / "both")
    assert (report.step, report.metrics["train/user_updates"]) == (12, 6.0)
    at_first, found = preference(policy_dir), {}
    for user in ("ada", "bob"):
        adapter_dir = tmp_path / "both" / "users" / user / "checkpoint-latest" / "weights"
        manifest = verify_adapter(adapter_dir)
        assert (manifest.adapter, manifest.version) == (user, 6)
        merge_adapter(policy_dir, adapter_dir, tmp_path / f"merged-{user}")
        found[user] = preference(tmp_path / f"merged-{user}")
    assert found["ada"] > at_first + 1
    assert found["bob"] < at_first - 1
    alone = user_trainers(policy_dir)
    alone.resume(tmp_path / "alone")
    for step in range(6):
        alone.train(batch("ada", step))
        alone.save(tmp_path / "alone")
    one, other = (
        read_manifest(tmp_path / run / "users" / "ada" / "checkpoint-6" / "weights") for run in ("both", "alone")
    )
    assert one.files == other.files, "bit for bit what Ada alone would have got"


def test_a_run_resumes_every_user_where_they_were(policy_dir: Path, tmp_path: Path) -> None:
    first = user_trainers(policy_dir)
    assert first.resume(tmp_path).users == {}
    for user in ("ada", "bob", "ada"):
        first.train(batch(user, first.num_updates))
        first.save(tmp_path)
    first.train(batch("bob", 9))  # not saved: it did not happen
    second = user_trainers(policy_dir)
    resumed = second.resume(tmp_path)
    assert resumed.step == 3
    assert {name: step for name, (step, _) in resumed.users.items()} == {"ada": 2, "bob": 1}
    assert resumed.consumed == {3: ("ada2x11", "ada2x22"), 2: ("bob1x11", "bob1x22")}
    assert second.train(batch("bob", 9)).step == 4


def test_a_batch_is_of_one_user(policy_dir: Path, tmp_path: Path) -> None:
    trainers = user_trainers(policy_dir)
    trainers.resume(tmp_path)
    mixed = Batch((*batch("ada").groups, *batch("bob").groups))
    with pytest.raises(TrainerError, match="of 2"):
        trainers.train(mixed)
    with pytest.raises(TrainerError, match="names no user"):
        trainers.train(Batch((SampleGroup("g", (sample("../etc", 11, 1.0),)),)))


async def test_the_queue_gives_batches_of_one_user_and_ages_them_by_that_users_updates(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    versions.open()

    def staleness(one: Sample) -> int:
        return max(versions.staleness(version, one.source) for version in one.trained_versions)

    queue = SampleQueue(10, 1, staleness, by_source=True)
    for index, user in enumerate(["ada", "bob", "ada", "bob", "ada"]):
        await queue.put(SampleGroup(f"{user}{index}", (sample(user, 11, 1.0, f"{user}{index}"),)))
    taken = await queue.take(2)
    assert [group.group_id for group in taken.groups] == ["ada0", "ada2"]
    assert queue.line_of(taken.groups[0].samples[0]) == "ada"
    for _ in range(2):
        versions.trained("ada")
        versions.take("ada")
    late = await queue.take(2)
    assert [group.group_id for group in late.stale] == ["ada4"], "sampled by 0, two of her updates ago"
    assert [group.group_id for group in late.groups] == ["bob1", "bob3"], "his weights are as they were"


async def test_many_who_say_little_do_not_block_each_other() -> None:
    queue = SampleQueue(capacity=3, max_staleness=1, by_source=True)
    for user in ("ada", "bob", "cyd"):
        await queue.put(SampleGroup(user, (sample(user, 11, 1.0, user),)))
    assert [group.group_id for group in (await queue.take(2)).groups] == ["ada"]


def test_scores_that_taught_a_user_nothing_are_remembered_past_another_users_update(policy_dir: Path, tmp_path: Path):
    loss = {"kl_loss_coef": 0.0, "eps_clip": 0.9, "eps_clip_high": 9.0}
    trainers = UserTrainers(trainer_of(policy_dir, lora=LORA, loss=loss))
    trainers.resume(tmp_path)

    def scored(user: str, *rewards: float) -> Batch:
        samples = [sample(user, LIKED_BY_ADA, reward, f"{user}{i}") for i, reward in enumerate(rewards)]
        return Batch(tuple(SampleGroup(f"g{i}", (one,)) for i, one in enumerate(samples)))

    assert "nothing to learn" in trainers.train(scored("ada", 1.0, 1.0)).skipped
    assert not trainers.train(scored("bob", 1.0, -1.0)).skipped
    trainers.save(tmp_path)
    assert not trainers.train(scored("ada", -1.0, -1.0)).skipped
