"""Distillation and its combination, offline: two real updates each on conversation files and on a stored buffer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from openclaw_test.tiny.model import Recipe, new_model
from openclaw_test.tiny.tokenizer import learn_tokenizer
from scripted_engine import ScriptedEngine
from slime.chat import ChatFormat
from slime.compat.prompts.plan import plan_rollout
from slime.config.loader import resolve
from slime.config.sections import Config
from slime.judging.hindsight.teacher import Teacher
from slime.judging.rules.judge import RuleJudge
from slime.monitor import Monitor, read_metrics
from slime.pipeline import Pipeline
from slime.plugins.losses import load_loss
from slime.progress import Progress
from slime.protocols import Resumed, TokenScores
from slime.publisher import Publisher
from slime.rollout.context import RolloutContext
from slime.rollout.hindsight import hint_source
from slime.store import Store
from slime.tools.collecting import training_settings
from slime.tools.offline import import_data_path
from slime.trainers.torch.trainer import TorchTrainer
from slime.types import Batch, TrainReport
from slime.weights.versions import Versions
from transformers import AutoModelForCausalLM

COMPLAINT, THANKS = "No, that is too long. Answer in one sentence.", "Thanks, that is right!"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can read and has learned nothing."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    tokenizer = learn_tokenizer(["what is two and two", COMPLAINT, THANKS])
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    new_model(tokenizer, Recipe()).save_pretrained(directory)
    return directory


class Weights(ScriptedEngine):
    """Scores by one forward pass of transformers over the weights that were published last."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__(["x"])
        self.version_served = 0
        self._load(model_dir)

    def _load(self, weights_dir: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(weights_dir, dtype=torch.float32).eval()

    async def update_weights(self, weights_dir: Path, version: int) -> None:
        self._load(weights_dir)
        self.version_served = version

    async def score(self, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> TokenScores:
        ids = torch.tensor(token_ids)
        with torch.no_grad():
            logprobs = torch.log_softmax(self._model(input_ids=ids[None]).logits[0, start - 1 : -1], dim=-1)
        sampled = logprobs.gather(-1, ids[start:, None]).squeeze(-1)
        top = logprobs.topk(top_k) if top_k else None
        return TokenScores(
            tuple(sampled.tolist()),
            self.version_served,
            tuple(map(tuple, top.indices.tolist())) if top else (),
            tuple(map(tuple, top.values.tolist())) if top else (),
        )


class InProcess:
    """The trainer of a run, in this process; a `protocols.Learner`."""

    def __init__(self, config: Config) -> None:
        self._save_dir = config.checkpoint.save_dir
        loss_fn = load_loss(config.plugin.custom_loss_function_path)
        self._trainer = TorchTrainer(
            config.model.model_path, config.trainer, config.loss, loss_fn=loss_fn, device="cpu"
        )
        self.batches: list[Batch] = []

    async def resume(self) -> Resumed:
        return Resumed(0, {}, None)

    async def train(self, batch: Batch) -> TrainReport:
        self.batches.append(batch)
        return self._trainer.train(batch)

    async def publish(self, version: int, adapter: str = "") -> Path:
        return self._trainer.publish(self._save_dir / "published" / f"version-{version}", version)

    async def save(self) -> Path:
        return self._trainer.save(self._save_dir)


def write_talks(directory: Path, replies: Sequence[tuple[str, str]]) -> None:
    directory.mkdir()
    with (directory / "talks.jsonl").open("w") as file:
        for number, (reply, following) in enumerate(replies):
            turn = {"type": "main", "prompt": f"what is two and {number}", "response": reply, "next_state": following}
            file.write(json.dumps({"session_id": f"s{number}", "turns": [turn]}) + "\n")


async def train_offline(model_dir: Path, rollout_dir: Path, folder: Path, *flags: str) -> list[Batch]:
    """What `train_async.py --rollout-dir DIR --model-path DIR …` does, with engine and trainer in this process."""
    placed, _ = await training_settings(rollout_dir)
    paths = ["--model-path", str(model_dir), "--save-dir", str(folder / "save"), "--run-dir", str(folder / "run")]
    config = resolve([*placed, *paths, "--lr", "1e-3", *flags], {}).config
    chat, engine, learner = ChatFormat.load(model_dir), Weights(model_dir), InProcess(config)
    plan, versions = plan_rollout(config), Versions(config.checkpoint.save_dir)
    progress = Progress(versions.staleness)
    async with Store.open(folder / "conversations") as store:
        await import_data_path(config, store, engine)
        ctx = RolloutContext(store, RuleJudge(), "train", progress, config.rollout, config.judge, config.teacher)
        named = {"teacher": Teacher(engine, engine, chat, config.teacher), "hint_source": hint_source(config, None)}
        pipeline = Pipeline(
            store=store,
            rollout=plan.open(ctx, config, named),
            learner=learner,
            publisher=Publisher(versions, learner, engine.update_weights, progress=progress),
            progress=progress,
            monitor=Monitor(config.monitor.run_dir),
            owner="train",
            rollout_config=config.rollout,
            checkpoint_config=config.checkpoint,
            until_drained=True,
        )
        await asyncio.wait_for(pipeline.run(), 60)
    return learner.batches


TALKS = [("Let me explain that step by step.", COMPLAINT), ("Four.", THANKS)] * 3


@pytest.mark.parametrize(
    ("method", "more", "num_trained"),
    [
        ("opd", ("--rollout-batch-size", "2"), 3),
        ("combine", ("--rollout-batch-size", "3"), 6),
        ("combine", ("--rollout-batch-size", "3", "--teacher-top-k", "2", "--hint-selection", "token_optimal"), 6),
    ],
)
async def test_a_method_makes_two_updates_on_files_and_on_stored_sessions(
    model_dir: Path, tmp_path: Path, method: str, more: tuple[str, ...], num_trained: int
):
    write_talks(tmp_path / "rollouts", TALKS)
    first = await train_offline(model_dir, tmp_path / "rollouts", tmp_path / "one", "--method", method, *more)
    again = await train_offline(
        model_dir, tmp_path / "one" / "conversations", tmp_path / "two", "--method", method, *more
    )
    for folder, batches in (("one", first), ("two", again)):
        steps = read_metrics(tmp_path / folder / "run")
        assert [step["step"] for step in steps] == [1, 2]
        assert all(step["train/grad_norm"] > 0 for step in steps)
        samples = [sample for batch in batches for sample in batch.samples]
        assert len(samples) == num_trained
        taught = [sample for sample in samples if any(sample.streams.get("has_teacher", ()))]
        assert len(taught) == 3, "of those who complained"
        for sample in taught:
            reply = slice(sample.streams["loss_mask"].index(1), None)
            teacher = sample.streams["teacher_logprobs"][reply]
            assert teacher != sample.streams["rollout_logprobs"][reply], "it has read the hint"
    ids = [{turn_id for batch in batches for turn_id in batch.turn_ids} for batches in (first, again)]
    assert ids[0] == ids[1], "a session is the same, wherever it is read"


async def test_a_run_that_finds_nothing_to_learn_from_says_what_was_missing(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_talks(tmp_path / "rollouts", [("Four.", THANKS), ("Five.", THANKS)])
    with caplog.at_level(logging.INFO):
        assert await train_offline(model_dir, tmp_path / "rollouts", tmp_path / "one", "--method", "opd") == []
    [told] = [record.getMessage() for record in caplog.records if "nothing is left" in record.getMessage()]
    assert "2 no teacher: there is no hint" in told
