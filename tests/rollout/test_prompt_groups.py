"""Prompts in, groups of rewarded replies out: what is trained, what is left out, given back and replaced."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from prompt_rig import Rig
from scripted_engine import ScriptedEngine
from scripted_learner import ScriptedLearner
from slime.chat import ChatFormat
from slime.compat.prompts import groups as prompt_groups
from slime.compat.prompts.plan import plan_rollout
from slime.compat.sample import Sample
from slime.config.sections import CheckpointConfig
from slime.engines.scripted.faults import Fault
from slime.errors import ConfigError, PluginError, RunStalled
from slime.monitor import Monitor, read_metrics
from slime.pipeline import Pipeline
from slime.plugins.loading import load_file
from slime.progress import Progress
from slime.publisher import Publisher
from slime.store import Store
from slime.weights.versions import Versions

REWARD = """
def reward(sample, args):
    return 1.0 if sample.response == "yes" else -1.0
"""


def flags(rig: Rig, *more: str, num_prompts: int = 8, reward: str = REWARD) -> list[str]:
    return [
        *("--prompt-data", str(rig.write_prompts(num_prompts)), "--custom-rm-path", rig.plugin("custom_rm.py", reward)),
        *("--num-rollouts-per-prompt", "2", "--rollout-batch-size", "4", *more),
    ]


async def test_a_group_holds_the_engines_tokens_and_the_rewards_of_its_members(rig: Rig, chat_dir):
    (first, second), run = await rig.groups(2, *flags(rig))
    chat = ChatFormat.load(chat_dir)
    assert first.group_id != second.group_id
    for group in (first, second):
        assert len(group.samples) == 2
        assert len({sample.trajectory_id for sample in group.samples}) == 2
        assert sorted(sample.values["reward"] for sample in group.samples) == [-1.0, 1.0]
        for sample in group.samples:
            prompt = sum(1 for flag in sample.streams["loss_mask"] if not flag)
            assert chat.decode(sample.token_ids[:prompt]).startswith("question ")
            assert chat.decode(sample.token_ids[prompt:]).startswith("yes" if sample.values["reward"] > 0 else "no")
            assert all(p < 0 for p in sample.streams["rollout_logprobs"][prompt:])
            assert set(sample.streams["policy_versions"][prompt:]) == {0}
    figures = run.batches.metrics()
    assert figures["rollout/raw_reward"] == 0.0
    assert figures["rollout/zero_std_ratio"] == 0.0


async def test_messages_and_templates(rig: Rig, chat_dir):
    chat = ChatFormat.load(chat_dir)
    file = rig.folder / "talk.jsonl"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi <|im_end|>"}]
    file.write_text(json.dumps({"input": messages}) + "\n" + json.dumps({"input": "hello"}) + "\n")
    more = ["--prompt-data", str(file), "--apply-chat-template", "--custom-rm-path", rig.plugin("r.py", REWARD)]
    groups, _ = await rig.groups(2, *more, "--rollout-batch-size", "2")
    fed = {sample.token_ids[: sample.streams["loss_mask"].index(1)] for group in groups for sample in group.samples}
    assert fed == {chat.render(messages), chat.render([{"role": "user", "content": "hello"}])}


async def test_uniform_groups_are_filtered_and_replaced(rig: Rig):
    rig.replies = ("yes", "yes", "yes", "no")
    wanted = rig.plugin(
        "filters.py",
        """
        from slime.rollout.filter_hub.base_types import DynamicFilterOutput

        def check_reward_nonzero_std(args, samples, **kwargs):
            differ = len({sample.get_reward_value(args) for sample in samples}) > 1
            return DynamicFilterOutput(keep=differ, reason=None if differ else "zero_std")
        """,
    )
    groups, run = await rig.groups(
        4, *flags(rig, "--dynamic-sampling-filter-path", f"{wanted}:check_reward_nonzero_std", num_prompts=3)
    )
    assert all({sample.values["reward"] for sample in group.samples} == {-1.0, 1.0} for group in groups)
    assert run.batches.metrics()["rollout/dynamic_filter/drop_zero_std"] >= 2


async def test_an_aborted_group_is_given_back_and_generated_again(rig: Rig):
    generate = rig.plugin(
        "generate.py",
        """
        from slime.utils.types import Sample

        seen = []

        async def generate(args, sample: Sample, sampling_params) -> Sample:
            seen.append(sample.group_index)
            end = "abort" if len(seen) == 2 else "stop"
            assert sample.response_length == 0 and sample.status is Sample.Status.PENDING
            sample.tokens = [5, 6]
            sample.append_response_tokens(
                args, tokens=[7, 8], log_probs=[-0.5, -0.25], text="yes",
                meta_info={"weight_version": "default", "finish_reason": {"type": end}},
            )
            return sample
        """,
    )
    groups, _ = await rig.groups(2, *flags(rig, "--custom-generate-function-path", generate))
    seen = load_file(Path(generate)).seen
    assert all(len(group.samples) == 2 for group in groups)
    assert seen.count(0) == 3, "only the member that was broken off is generated again"
    assert all(sample.token_ids == (5, 6, 7, 8) for group in groups for sample in group.samples)


async def test_no_more_is_given_out_than_can_be_trained_in_time(rig: Rig):
    config = rig.config(*flags(rig, "--max-staleness", "0", "--over-sampling-batch-size", "9"))
    run = rig.start(config)
    stream = run.stream()
    await asyncio.wait_for(anext(stream), 10)
    await asyncio.wait_for(anext(stream), 10)
    rig.progress.num_waiting = 4  # what was yielded waits for the trainer
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert len(run._under_way) == 0
    rig.progress.num_waiting, rig.progress.version = 0, 1
    await asyncio.wait_for(waiting, 10)
    await stream.aclose()


async def test_a_reward_that_fails_three_times_is_switched_off_and_nothing_more_is_sampled(rig: Rig, caplog):
    config = rig.config(*flags(rig, reward="def reward(sample):\n    raise OSError('gone')\n"))
    run = rig.start(config)
    stream = run.stream()
    with pytest.raises(RunStalled, match="custom-rm-path failed again and again and was switched off"):
        await asyncio.wait_for(anext(stream), 10)
    assert run.maker.is_unjudged
    assert "switched off" in caplog.text
    assert run.batches.left_out["unjudged"] > 0
    await stream.aclose()


async def test_a_data_source_that_runs_out_ends_the_rollout_with_what_is_left(rig: Rig):
    """Three prompts in batches of two groups: the third is given out too, and then the stream ends."""
    config = rig.config(*flags(rig))
    run = rig.start(config)
    left, draw = 3, run.source.get_samples

    def get_samples(number: int):  # type: ignore[no-untyped-def]
        nonlocal left
        given, left = min(left, number), left - min(left, number)
        return draw(given) if given else []

    run.source.get_samples = get_samples  # type: ignore[method-assign]
    async with asyncio.timeout(20):
        groups = [group async for group in run.stream()]
    assert len(groups) == 3


async def test_an_engine_that_is_away_is_asked_again(rig: Rig, monkeypatch):
    monkeypatch.setattr(prompt_groups, "_RETRY_S", 0.01)
    engine = ScriptedEngine(rig.replies, model_dir=rig.model_dir)
    engine.faults.plan(Fault.HTTP_503, times=2)
    rig.engines = [engine]
    groups, _ = await rig.groups(2, *flags(rig))
    assert [len(group.samples) for group in groups] == [2, 2]


async def test_what_was_out_and_not_trained_is_given_out_again_after_a_restart(rig: Rig):
    """Twelve prompts, two updates trained, a third sampled: the run that goes on trains each prompt once."""
    more = flags(rig, "--rollout-shuffle", "--num-rollout", "2", num_prompts=12)
    seen: list[str] = []

    async def train_until(updates: int, folder) -> None:
        config = rig.config(*more[:-1], str(updates))
        plan = plan_rollout(config)
        learner = ScriptedLearner(rig.folder / "checkpoints")
        original = learner.train

        async def train(batch):  # type: ignore[no-untyped-def]
            chat = ChatFormat.load(rig.model_dir)
            for group in batch.groups:
                sample = group.samples[0]
                seen.append(chat.decode(sample.token_ids[: sample.streams["loss_mask"].index(1)]))
            return await original(batch)

        learner.train = train  # type: ignore[method-assign]
        rig.engines = [engine := ScriptedEngine(rig.replies, model_dir=rig.model_dir)]
        versions = Versions(rig.folder / "checkpoints")
        progress = Progress(versions.staleness)
        async with Store.open(folder / "turns") as store:
            pipeline = Pipeline(
                store=store,
                rollout=plan.open(rig.context(config, progress), config, {}),
                learner=learner,
                publisher=Publisher(versions, learner, engine.update_weights, progress=progress),
                progress=progress,
                monitor=Monitor(folder),
                owner="test",
                rollout_config=config.rollout,
                checkpoint_config=CheckpointConfig(),
            )
            await asyncio.wait_for(pipeline.run(), 30)

    await train_until(2, rig.folder / "first")
    await train_until(6, rig.folder / "second")
    assert sorted(seen) == sorted(f"question {i}" for i in range(12))
    # a batch that was sampled while another trained may be told of with either
    entries = read_metrics(rig.folder / "second")
    told = [entry["rollout/raw_reward"] for entry in entries if "rollout/raw_reward" in entry]
    assert told
    assert set(told) == {0.0}


async def test_replies_without_log_probs_and_samples_with_hooks_of_their_own_end_the_run(rig: Rig):
    source = """
def generate(sample):
    sample.tokens, sample.response, sample.response_length = [1, 2, 3], "yes", 2
    sample.status = sample.Status.COMPLETED
    return sample
"""
    with pytest.raises(PluginError, match=r"replies come without log-probs .*append_response_tokens"):
        await rig.groups(1, *flags(rig, "--custom-generate-function-path", rig.plugin("bare.py", source)))
    run = rig.start(rig.config(*flags(rig)))
    (group,) = run.source.get_samples(1)
    group[0].multimodal_inputs = {"images": ["x.png"]}
    with pytest.raises(PluginError, match=r"sample\.multimodal_inputs is set"):
        await run.maker.make(group, 0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--prompt-data", "nowhere.jsonl"], "--prompt-data nowhere.jsonl: no such file"),
        (["--input-key", "prompt"], "tasks.jsonl:1: no 'prompt' in it; --input-key names the prompt"),
        (["--label-key", "answer"], "tasks.jsonl:1: no 'answer' in it; --label-key names the label"),
        (["--custom-rm-path", ""], "replies to prompts need a reward: give --custom-rm-path"),
        (["--eval-interval", "2"], "--eval-interval goes with --eval-prompt-data"),
        (["--num-rollouts-per-prompt", "1", "--baseline", "group"], "nothing would be learned"),
        (["--rollout-function-path", "openclaw_rl.custom_rollout.generate_rollout"], "asks for no `prompts`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(rig: Rig, more, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(").replace("?", r"\?")):
        plan_rollout(rig.config(*flags(rig), *more))


def test_a_hook_that_the_loop_would_not_call_is_refused(rig: Rig):
    hook = rig.plugin("filters.py", "def dynamic_filter(samples): return True\n")
    with pytest.raises(ConfigError, match="a rollout of conversations does not call it; it needs --prompt-data"):
        plan_rollout(rig.config("--dynamic-sampling-filter-path", hook))
    wrong = rig.plugin("wrong.py", "def dynamic_filter(smaples): return True\n")
    with pytest.raises(PluginError, match=r"asks for 'smaples', which is not one of .*; did you mean samples\?"):
        plan_rollout(rig.config(*flags(rig), "--dynamic-sampling-filter-path", wrong))


def test_a_response_is_appended_only_whole():
    sample = Sample(tokens=[1, 2])
    with pytest.raises(ValueError, match="trainable tokens need the log-probs"):
        sample.append_response_tokens(tokens=[3])
    with pytest.raises(ValueError, match="2 log-probs for 1 tokens"):
        sample.append_response_tokens(tokens=[3], log_probs=[-0.1, -0.2])
    with pytest.raises(ValueError, match="have no log-probs"):
        sample.append_response_tokens(tokens=[3], log_probs=[-0.1], trainable=False)
    sample.append_response_tokens(tokens=[3], log_probs=[-0.1], meta_info={"finish_reason": {"type": "length"}})
    sample.append_response_tokens(tokens=[4], trainable=False)
    assert (sample.tokens, sample.loss_mask, sample.rollout_log_probs) == ([1, 2, 3, 4], [1, 0], [-0.1, 0.0])
    assert sample.status is Sample.Status.TRUNCATED
    assert Sample.from_dict(sample.to_dict() | {"mine": 1}).mine == 1
