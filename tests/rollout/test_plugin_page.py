"""The examples of docs/plugins.md are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from prompt_rig import Rig
from slime.compat.conversion import to_train_sample
from slime.compat.prompts.plan import plan_rollout
from slime.compat.rollout_data import BatchHooks
from slime.compat.sample import Sample as SlimeSample
from slime.config.checks.contradictions import RolloutKind
from slime.config.sections import Config, EngineConfig, ModelConfig, PluginConfig
from slime.data.rows import flatten, rows
from slime.engines.client import HttpEngine
from slime.engines.launch import start_engine
from slime.plugins.hooks import (
    ADVANTAGE,
    GROUP_REWARD,
    LOSS,
    PG_REDUCER,
    PROMPT_HOOKS,
    REWARD,
    ROLLOUT,
    ROLLOUT_DATA,
    SLIME_ROLLOUT,
    TIS,
    load_hook,
    load_rollout,
)
from slime.plugins.losses import load_loss
from slime.plugins.rewards import load_reward
from slime.plugins.settings import plugin_settings
from slime.trainers.policy_hooks import reduced, weighed
from slime.types import Batch, Sample, SampleGroup

PAGE = (Path(__file__).resolve().parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def example(directory: Path, file_name: str, containing: str = "") -> str:
    """The example of that file name, written to a folder with a dash in its name; its path."""
    (source,) = [e for e in EXAMPLES if e.startswith(f"# my-method/{file_name}\n") and containing in e]
    folder = directory / "my-method"
    folder.mkdir(exist_ok=True)
    (folder / file_name).write_text(source)
    return str(folder / file_name)


def test_the_loss(tmp_path):
    values = {
        "policy_logprobs": torch.tensor([-1.0, -0.5], requires_grad=True),
        "rollout_logprobs": torch.tensor([-1.0, -1.5]),
        "advantages": torch.tensor([1.0, 1.0]),
        "sum_of_sample_mean": lambda x: x.mean(),
        "config": plugin_settings(Config()),
    }
    loss, metrics = load_loss(example(tmp_path, "custom_loss.py"))(values)
    e = torch.e
    assert loss.item() == pytest.approx(-(1.0 + 1.28) / 2)
    assert metrics == {"ratio": pytest.approx((1 + e) / 2)}


def one_sample_in_slimes_layout() -> dict[str, object]:
    """Two tokens that the trainer finds e times likelier than the engine did, the first of them masked."""
    return {
        "args": SimpleNamespace(tis_clip=2.0),
        "pg_loss": torch.tensor([0.0, 3.0], requires_grad=True),
        "train_log_probs": [torch.tensor([-1.0, -1.0])],
        "rollout_log_probs": [torch.tensor([-2.0, -2.0])],
        "loss_masks": [torch.tensor([0.0, 1.0])],
        "total_lengths": [5],
        "response_lengths": [2],
        "calculate_per_token_loss": False,
    }


def test_the_weights_of_the_policy_loss(tmp_path):
    hook = load_hook(TIS, example(tmp_path, "custom_tis.py"))
    offered = one_sample_in_slimes_layout()
    losses, mask, figures = weighed(hook, offered)
    assert losses.tolist() == [0.0, 6.0]
    assert mask.tolist() == [0.0, 1.0]
    assert figures["tis"].tolist() == [pytest.approx(torch.e)] * 2
    far = weighed(hook, {**offered, "rollout_log_probs": [torch.tensor([-1.0, -9.0])]})
    assert far[1].tolist() == [0.0, 0.0]


def test_the_reducer_of_the_policy_loss(tmp_path):
    hook = load_hook(PG_REDUCER, example(tmp_path, "pg_loss_reducer.py"))
    offered = one_sample_in_slimes_layout()
    assert reduced(hook, offered, offered["pg_loss"]).item() == pytest.approx(0.003)


def test_the_reward_function(tmp_path):
    hook = load_reward(example(tmp_path, "custom_rm.py", "def reward"), {})
    assert hook.call({"prompt": "", "response": "", "next_state": "Thank you!"}) == 1.0
    assert hook.call({"prompt": "", "response": "", "next_state": "No."}) == -1.0


def test_the_reward_model(tmp_path):
    hook = load_reward(example(tmp_path, "custom_rm.py", "class Lengths"), {"default_max_tokens": 3})
    assert (hook.call({"response": "abc"}), hook.call({"response": "abcd"})) == (1.0, -1.0)


def test_the_rollout(tmp_path):
    call, is_stream = load_rollout(example(tmp_path, "custom_rollout.py"))
    assert (call.asks_for, is_stream) == ({"ctx"}, True)
    call, is_stream = load_rollout(example(tmp_path, "filtering_rollout.py"))
    assert (call.asks_for, is_stream) == ({"store", "judge", "owner", "policy_version", "config"}, True)


def test_the_group_reward(tmp_path):
    hook = load_reward(example(tmp_path, "group_rm.py"), {}, takes_groups=True)
    assert hook.is_async
    assert hook.takes_groups


# ── hooks of a rollout over prompts, run on a scripted engine ───────────────────────────────────────────────────────


def prompts_of(rig: Rig, *more: str) -> list[str]:
    reward = ["--custom-rm-path", rig.plugin("rm.py", "def reward(response): return float(response == 'yes')\n")]
    data = ["--prompt-data", str(rig.write_prompts(6)), "--label-key", "label"]
    return [*data, *reward, "--num-rollouts-per-prompt", "2", "--rollout-batch-size", "4", *more]


async def test_the_batch_rollout(rig: Rig, tmp_path):
    path = example(tmp_path, "slime_rollout.py")
    groups, run = await rig.groups(2, *prompts_of(rig, "--rollout-function-path", path))
    assert [sample.values["reward"] for sample in groups[0].samples] == [-1.0, 1.0]
    assert groups[0].samples[0].streams["rollout_logprobs"] == (0, 0, -0.7, -0.1)
    assert run.batches.metrics()["mine/rollout_id"] == 0


async def test_the_data_source(rig: Rig, tmp_path):
    flags = prompts_of(rig)[4:]
    groups, _ = await rig.groups(2, *flags, "--data-source-path", example(tmp_path, "data_source.py"))
    fed = sorted(rig.chat.decode(group.samples[0].token_ids)[:7] for group in groups)
    assert fed == ["0 + 0 =", "1 + 1 ="]


def test_the_buffer_filter(rig: Rig, tmp_path):
    flags = prompts_of(rig, "--buffer-filter-path", example(tmp_path, "buffer_filter.py"))
    source = plan_rollout(rig.config(*flags)).source
    first, second = source.get_samples(2)
    source.add_samples([second, first])
    assert source.get_samples(1) == [first]
    assert source.get_samples(1) == [second]


async def test_the_reply(rig: Rig, tmp_path):
    """Through HTTP, as the example asks; the pieces around it are tested with the published files."""
    process = await start_engine(
        ModelConfig(model_path=str(rig.model_dir)), EngineConfig(), log_path=tmp_path / "log", backend="scripted"
    )
    async with HttpEngine(process.url) as engine:
        rig.engines, rig.urls = [engine], [process.url]
        groups, _ = await rig.groups(
            1, *prompts_of(rig, "--custom-generate-function-path", example(tmp_path, "generate.py"))
        )
    await process.stop()
    assert all(sample.num_trainable_tokens > 1 for sample in groups[0].samples)


async def test_the_hooks_of_a_batch(rig: Rig, tmp_path, capsys):
    filters = example(tmp_path, "batch_filters.py")
    logs = example(tmp_path, "logs.py")
    groups, run = await rig.groups(
        2,
        *prompts_of(rig),
        *("--rollout-sample-hook-path", example(tmp_path, "sample_hook.py")),
        *("--dynamic-sampling-filter-path", example(tmp_path, "dynamic_filter.py")),
        *("--rollout-sample-filter-path", filters),
        *("--rollout-all-samples-process-path", filters),
        *("--custom-reward-post-process-path", example(tmp_path, "post_process_rewards.py")),
        *("--custom-rollout-log-function-path", logs),
    )
    said = capsys.readouterr().out
    assert "2 groups, the first about 'question " in said
    assert "batch 0: 4 samples in " in said
    advantages = [s.streams["advantages"][s.streams["loss_mask"].index(1)] for group in groups for s in group.samples]
    assert sorted(advantages) == [-0.5, -0.5, 0.5, 0.5]
    assert run.batches.metrics()["rollout/raw_reward"] == 0.5


async def test_the_converter(rig: Rig, tmp_path):
    path = example(tmp_path, "convert_samples.py")
    groups, _ = await rig.groups(2, *prompts_of(rig, "--custom-convert-samples-to-train-data-path", path))
    assert [sorted(s.values["reward"] for s in group.samples) for group in groups] == [[0.0, 1.0], [0.0, 1.0]]


async def test_the_evaluation(rig: Rig, tmp_path, capsys):
    own = ["--eval-function-path", example(tmp_path, "evaluate.py"), "--eval-interval", "5"]
    logs = ["--custom-eval-rollout-log-function-path", example(tmp_path, "logs.py")]
    run = rig.start(rig.config(*prompts_of(rig, *own, *logs)))
    assert await run.updated(5) == {"eval/mine": 0.5, "eval/mine-truncated_ratio": 0.5, "eval/mine-unjudged": 0.0}
    assert "after update 5: ['mine']" in capsys.readouterr().out


async def test_the_advantages(tmp_path):
    file = example(tmp_path, "advantages.py")
    plugin = PluginConfig(custom_advantage_function_path=file, rollout_data_postprocess_path=file)
    streams = {"loss_mask": (0, 1), "rollout_logprobs": (0.0, -0.5)}
    samples = [Sample((1, 2), streams, {"reward": reward}, (f"t{i}",)) for i, reward in enumerate((3.0, 1.0, -1.0))]
    batch = Batch(tuple(SampleGroup(f"g{i}", (sample,)) for i, sample in enumerate(samples)))
    changed = await BatchHooks(plugin, {}).apply(batch, 0)
    assert [sample.streams["advantages"] for sample in changed.samples] == [(0.0, 1.0), (0.0, 0.0), (0.0, -1.0)]


def test_a_new_stream_reaches_the_loss_of_the_trainer(tmp_path):
    """Registered by the plug-in alone, carried by samples, packed, and asked for by name; nothing of ours knows it."""
    loss = load_loss(example(tmp_path, "confident.py"))
    given = Sample((1, 2, 3), {"loss_mask": (0, 1, 1), "confidence": (1.0, 0.25, 0.5)}, {"reward": 1.0}, ())
    absent = Sample((1, 2), {"loss_mask": (0, 1)}, {"reward": 1.0}, ())
    confidence = flatten(rows([given, absent])).streams["confidence"]
    assert confidence.tolist() == [0.25, 0.5, 1.0]
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    offered = {"policy_logprobs": logprobs, "advantages": torch.ones(3), "confidence": confidence}
    value, _ = loss({**offered, "sum_of_sample_mean": torch.sum})
    assert value.item() == 0.25 + 1.0 + 3.0
    in_slimes_words = SlimeSample(
        tokens=[1, 2, 3],
        response_length=2,
        rollout_log_probs=[-1.0, -1.0],
        reward=1.0,
        train_metadata={"confidence": [0.25, 0.5]},
    )
    made = to_train_sample(in_slimes_words, trajectory_id="x", temperature=1.0, version=0)
    assert made.streams["confidence"] == (1.0, 0.25, 0.5)


def test_a_rollout_declares_that_it_makes_groups(rig: Rig, tmp_path: Path):
    plan = plan_rollout(rig.config("--rollout-function-path", example(tmp_path, "grouping_rollout.py")))
    assert (plan.kind, plan.call.function.gives_groups) == (RolloutKind.CONVERSATIONS, True)


def test_every_example_is_tested():
    tests = Path(__file__).read_text(encoding="utf-8")
    named = re.findall(r"^# my-method/(\w+\.py)$", PAGE, flags=re.MULTILINE)
    assert len(named) >= 18
    assert [name for name in named if f'"{name}"' not in tests] == []


def test_every_name_on_offer_is_on_the_page():
    every = [LOSS, REWARD, GROUP_REWARD, ROLLOUT, SLIME_ROLLOUT, ADVANTAGE, ROLLOUT_DATA, TIS, PG_REDUCER]
    every += PROMPT_HOOKS.values()
    for hook in every:
        assert hook.flag in PAGE
        for name in (*hook.names, *hook.default_names):
            assert f"`{name}`" in PAGE, f"{hook.flag}: {name}"
