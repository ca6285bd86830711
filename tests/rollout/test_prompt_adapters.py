"""With an adapter every reply to a prompt is the adapter's, whoever asks the engine for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prompt_rig import Rig
from scripted_engine import ScriptedEngine
from slime.config.sections import EngineConfig, ModelConfig
from slime.engines.client import HttpEngine
from slime.engines.launch import start_engine
from slime.errors import PluginError
from slime.plugins.loading import load_file

PUBLISHED = Path(__file__).parents[1] / "plugins" / "published"

OWN_CLIENT = """
import aiohttp

async def generate(args, sample, sampling_params):
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    asked = {"input_ids": [5, 6, 7], "sampling_params": sampling_params, "return_logprob": True{more}}
    shown = {"Authorization": f"Bearer {args.sglang_api_key}"}
    async with aiohttp.ClientSession() as session, session.post(url, json=asked, headers=shown) as answered:
        answer = await answered.json()
    drawn = answer["meta_info"]["output_token_logprobs"]
    sample.tokens = [5, 6, 7]
    meta = answer["meta_info"]{label}
    ids, probs = [entry[1] for entry in drawn], [entry[0] for entry in drawn]
    sample.append_response_tokens(args, tokens=ids, log_probs=probs, text=answer["text"], meta_info=meta)
    return sample
"""
NAMED = {"more": ', "lora_path": args.lora_path', "label": ' | {"weight_version": args.weight_version}'}

ROLLOUT = """
from slime.utils.async_utils import run
from slime.utils.http_utils import post

def generate_rollout(args, rollout_id, data_source):
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    (group,) = data_source.get_samples(1)
    for sample in group:
        sample.tokens, params = [5, 6, 7], args.sampling_params
        answer = run(post(url, {"input_ids": sample.tokens, "sampling_params": params, "return_logprob": True}))
        drawn = answer["meta_info"]["output_token_logprobs"]
        ids, probs = [entry[1] for entry in drawn], [entry[0] for entry in drawn]
        sample.append_response_tokens(args, tokens=ids, log_probs=probs, text="", meta_info=answer["meta_info"])
        sample.reward = 1.0
    return [group]
"""


@pytest.fixture
async def http_rig(rig: Rig, tmp_path: Path) -> AsyncIterator[Rig]:
    """An engine behind HTTP that serves version 3 of the adapter beside the base."""
    process = await start_engine(
        ModelConfig(model_path=str(rig.model_dir)),
        EngineConfig(engine_token="hush"),
        log_path=tmp_path / "engine.log",
        backend="scripted",
    )
    async with HttpEngine(process.url, token="hush") as engine:
        await engine.load_adapter("policy", adapter_at(tmp_path), 3)
        rig.engines, rig.urls, rig.progress.version = [engine], [process.url], 3
        yield rig
    await process.stop()


def adapter_at(folder: Path) -> Path:
    (folder / "adapter").mkdir()
    return folder / "adapter"


def flags(rig: Rig, *more: str) -> list[str]:
    data = ["--prompt-data", str(rig.write_prompts(6)), "--use-lora", "--default-max-tokens", "8"]
    data += ["--engine-token", "hush"]
    reward = rig.plugin("custom_rm.py", "def reward(response):\n    return float(len(response))\n")
    size = ["--num-rollouts-per-prompt", "2", "--rollout-batch-size", "2"]
    return [*data, *size, "--custom-rm-path", reward, *more]


def versions(groups: list) -> set[int]:
    """Of the tokens that were sampled."""
    return {
        version
        for group in groups
        for sample in group.samples
        for version, flag in zip(sample.streams["policy_versions"], sample.streams["loss_mask"], strict=True)
        if flag
    }


async def test_replies_to_prompts_are_sampled_by_the_newest_adapter(rig: Rig, tmp_path: Path):
    engine = ScriptedEngine(["yes", "no"], model_dir=rig.model_dir)
    rig.engines, rig.progress.version = [engine], 3
    await engine.load_adapter("policy", adapter_at(tmp_path), 3)
    groups, _ = await rig.groups(2, *flags(rig))
    assert versions(groups) == {3}


async def test_replies_of_an_evaluation_are_sampled_by_the_newest_adapter(rig: Rig, tmp_path: Path):
    engine = ScriptedEngine(["yes", "no"], model_dir=rig.model_dir)
    rig.engines = [engine]
    await engine.load_adapter("policy", adapter_at(tmp_path), 3)
    rows = f"held={rig.write_prompts(3)}"
    looks = rig.plugin("looks.py", "SEEN = []\ndef sample_hook(sample):\n    SEEN.extend(sample.policy_versions)\n")
    more = ["--eval-prompt-data", rows, "--eval-interval", "1", "--rollout-sample-hook-path", looks]
    config = rig.config(*flags(rig, *more))
    await rig.start(config).updated(1)
    assert set(load_file(Path(looks)).SEEN) == {3}


async def test_without_an_adapter_the_base_is_asked(rig: Rig):
    groups, _ = await rig.groups(2, *(flag for flag in flags(rig) if flag != "--use-lora"))
    assert versions(groups) == {0}


async def test_a_hook_that_posts_by_itself_is_answered_by_the_newest_adapter(http_rig: Rig):
    generate = str(PUBLISHED / "slime_generate.py")
    groups, _ = await http_rig.groups(2, *flags(http_rig, "--custom-generate-function-path", generate))
    assert versions(groups) == {3}


async def test_a_rollout_function_that_posts_from_a_thread_is_answered_by_the_newest_adapter(http_rig: Rig):
    file = http_rig.plugin("custom_rollout.py", ROLLOUT)
    groups, _ = await http_rig.groups(1, *flags(http_rig, "--rollout-function-path", file))
    assert versions(groups) == {3}


async def test_a_hook_with_a_client_of_its_own_is_told_the_adapters_name(http_rig: Rig):
    source = OWN_CLIENT.replace("{more}", NAMED["more"]).replace("{label}", NAMED["label"])
    file = http_rig.plugin("custom_generate.py", source)
    groups, _ = await http_rig.groups(2, *flags(http_rig, "--custom-generate-function-path", file))
    assert versions(groups) == {3}


async def test_a_hook_that_asks_the_base_ends_the_run_with_what_to_send(http_rig: Rig):
    file = http_rig.plugin("custom_generate.py", OWN_CLIENT.replace("{more}", "").replace("{label}", ""))
    with pytest.raises(PluginError, match=r"custom_generate.*the adapter serves version 3: .*lora_path=args.lora_path"):
        await http_rig.groups(1, *flags(http_rig, "--custom-generate-function-path", file))
