"""Files written to slime's documented signatures run unchanged on our engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prompt_rig import Rig
from slime.compat.prompts.plan import plan_rollout
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.client import HttpEngine
from slime.engines.launch import start_engine
from slime.errors import PluginError
from slime.plugins.loading import load_file

PUBLISHED = Path(__file__).parents[1] / "plugins" / "published"
HOOKS = PUBLISHED / "slime_hooks.py"


@pytest.fixture
async def http_rig(rig: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """The rig with an engine behind HTTP, as such files ask it."""
    process = await start_engine(
        ModelConfig(model_path=str(rig.model_dir)), EngineConfig(), log_path=tmp_path / "engine.log", backend="scripted"
    )
    async with HttpEngine(process.url) as engine:
        rig.engines, rig.urls = [engine], [process.url]
        yield rig
    await process.stop()


def flags(rig: Rig, *more: str) -> list[str]:
    data = ["--prompt-data", str(rig.write_prompts(6)), "--label-key", "label"]
    return [*data, "--num-rollouts-per-prompt", "2", "--rollout-batch-size", "4", *more]


def one_reward(name: str = "custom_rm") -> list[str]:
    return ["--custom-rm-path", f"{PUBLISHED / 'slime_reward.py'}:{name}"]


async def test_a_rollout_function(http_rig: Rig):
    more = ["--rollout-function-path", str(PUBLISHED / "slime_rollout.py"), "--default-max-tokens", "16"]
    groups, run = await http_rig.groups(4, *flags(http_rig, *more))
    assert [len(group.samples) for group in groups] == [2, 2, 2, 2]
    assert len({group.group_id for group in groups}) == 4
    for group in groups:
        for sample in group.samples:
            assert sample.values["reward"] == -1.0
            assert sample.num_trainable_tokens > 1
            assert min(sample.streams["rollout_logprobs"]) < 0
    assert run.batches.metrics()["mine/rollout_id"] == pytest.approx(0.5), "two batches: number 0 and number 1"


async def test_a_generate_function_with_a_tool(http_rig: Rig):
    more = ["--custom-generate-function-path", str(PUBLISHED / "slime_generate.py"), "--default-max-tokens", "16"]
    groups, _ = await http_rig.groups(2, *flags(http_rig, *more, *one_reward()))
    tokenizer = http_rig.chat.encode(" tool ")
    for sample in (sample for group in groups for sample in group.samples):
        mask = sample.streams["loss_mask"]
        response = mask[mask.index(1) :]
        assert response.count(0) == len(tokenizer), "the tool's words are context"
        masked = [i for i, flag in enumerate(mask) if not flag and i > mask.index(1)]
        assert tuple(sample.token_ids[i] for i in masked) == tuple(tokenizer)
        assert all(sample.streams["rollout_logprobs"][i] == 0.0 for i in masked)


async def test_a_reward_of_one_sample_and_of_a_group(rig: Rig):
    rig.replies = ("yes", "no, not at all")
    single, _ = await rig.groups(2, *flags(rig, *one_reward()))
    assert {sample.values["reward"] for group in single for sample in group.samples} == {1.0, -1.0}
    by_group, _ = await rig.groups(2, *flags(rig, *one_reward("batched_custom_rm"), "--group-rm"))
    for group in by_group:
        rewards = sorted(sample.values["reward"] for sample in group.samples)
        assert 0 < rewards[0] < rewards[1] == 1.0


async def test_the_hooks_of_a_batch_in_their_order(rig: Rig):
    calls = load_file(HOOKS).calls
    calls.clear()
    more = [
        *("--rollout-sample-hook-path", f"{HOOKS}:sample_hook"),
        *("--dynamic-sampling-filter-path", f"{HOOKS}:dynamic_filter"),
        *("--buffer-filter-path", f"{HOOKS}:buffer_filter"),
        *("--rollout-sample-filter-path", f"{HOOKS}:sample_filter"),
        *("--rollout-all-samples-process-path", f"{HOOKS}:process_all_samples"),
        *("--custom-reward-post-process-path", f"{HOOKS}:post_process_rewards"),
        *("--custom-rollout-log-function-path", f"{HOOKS}:log_rollout"),
    ]
    groups, run = await rig.groups(2, *flags(rig, *one_reward(), *more))
    assert sorted(len(group.samples) for group in groups) == [1, 2], "one sample was removed"
    for sample in (sample for group in groups for sample in group.samples):
        trained = sample.streams["loss_mask"].index(1)
        assert sample.streams["advantages"][trained] == sample.values["reward"] - 0.5
    assert calls.count(("sample_hook", 0, False)) >= 4
    assert [call for call in calls if call[0] != "sample_hook"][:2] == [("all_samples", 2), ("log", 0, 4)]
    assert run.batches.metrics() == {}, "the log hook said that ours is to be left out"


async def test_a_converter(rig: Rig):
    more = ["--custom-convert-samples-to-train-data-path", f"{HOOKS}:convert_samples"]
    groups, _ = await rig.groups(2, *flags(rig, *one_reward(), *more))
    for sample in (sample for group in groups for sample in group.samples):
        assert sample.num_trainable_tokens == 1
        trained = sample.streams["loss_mask"].index(1)
        assert sample.streams["advantages"][trained] == 2 * sample.values["reward"]


async def test_a_data_source(rig: Rig):
    more = [*("--data-source-path", f"{HOOKS}:DataSource"), *one_reward()]
    more += ["--num-rollouts-per-prompt", "2", "--rollout-batch-size", "4"]
    groups, run = await rig.groups(2, *more)
    assert [len(group.samples) for group in groups] == [2, 2]
    await run.saved(1, ("rollout0-0",))
    assert run.source.saved == [1]  # type: ignore[attr-defined]


async def test_an_evaluation_by_our_engines_and_by_a_function(http_rig: Rig):
    sets = ["--eval-prompt-data", f"held={http_rig.write_prompts(3)}", "--eval-interval", "2"]
    log = ["--custom-eval-rollout-log-function-path", f"{HOOKS}:log_eval"]
    calls = load_file(HOOKS).calls
    calls.clear()
    run = http_rig.start(http_rig.config(*flags(http_rig, *one_reward(), *sets, *log, "--default-max-tokens", "16")))
    assert await run.updated(1) == {}
    assert await run.updated(2) == {"eval/held": -1.0, "eval/held-truncated_ratio": 1.0, "eval/held-unjudged": 0.0}
    assert calls == [("eval_log", 2, ["held"])]
    own = ["--eval-function-path", str(PUBLISHED / "slime_rollout.py"), "--eval-interval", "1"]
    run = http_rig.start(http_rig.config(*flags(http_rig, *one_reward(), *own)))
    assert (await run.updated(1))["eval/mine"] == -1.0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def generate_rollout(args, rollout_id, data_source): return 3\n", "gave int of no groups"),
        ("def generate_rollout(args, rollout_id, data_source): return [[1]]\n", "gave groups that are no lists of"),
        ("def generate_rollout(args, rollout_id, data_source): raise OSError('gone')\n", "OSError: gone"),
        (
            "import time\ndef generate_rollout(args, rollout_id, data_source): time.sleep(2)\n",
            "took longer than --hook-timeout-s 0.2",
        ),
    ],
)
async def test_a_rollout_function_that_does_not_do_its_job_ends_the_run_with_its_name(rig: Rig, source, words):
    file = rig.plugin("custom_rollout.py", source)
    more = ["--rollout-function-path", file, "--hook-timeout-s", "0.2"]
    with pytest.raises(PluginError, match=rf"custom_rollout.py:generate_rollout.*{words}"):
        await rig.groups(1, *flags(rig, *more))


def test_a_rollout_function_is_told_the_names_on_offer(rig: Rig):
    file = rig.plugin("custom_rollout.py", "def generate_rollout(args, rollout, data_source): ...\n")
    with pytest.raises(PluginError, match="asks for 'rollout', which is not one of args, config, data_buffer"):
        plan_rollout(rig.config("--rollout-function-path", file))
