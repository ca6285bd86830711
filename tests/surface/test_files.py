"""The files that the published pages print, cut out of the pages, do what they say or are answered in one line."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from openclaw_combine.session_processor import SessionAwareProcessor
from published_pages import CUTS, cut, write
from slime.algorithms.returns import compute_gae
from slime.config.checks.startup import check_startup
from slime.config.loader import resolve
from slime.data.conversation_files import parse_conversation
from slime.errors import ConfigError, PluginError
from slime.plugins.hooks import load_rollout
from slime.plugins.losses import _published_compute_gae, load_loss
from slime.plugins.rewards import load_reward
from slime.plugins.settings import plugin_settings


@pytest.mark.parametrize("file", [file for file in CUTS if file.endswith(".py")])
def test_a_cut_is_a_python_file(shared_dir: Path, file: str):
    assert ast.parse(cut(shared_dir, file), file).body, "a syntax error is the failure, and so is an empty cut"


@pytest.fixture
def values() -> dict[str, Any]:
    """Three tokens of one turn; there is a teacher for the first two."""
    return {
        "policy_logprobs": torch.tensor([-0.5, -1.0, -0.2], requires_grad=True),
        "reference_logprobs": torch.tensor([-0.6, -0.8, -0.2]),
        "teacher_logprobs": torch.tensor([-0.4, -1.1, -0.3]),
        "tempered_teacher_logprobs": torch.tensor([-0.4, -1.1, -0.3]),
        "has_teacher": torch.ones(3),
        "advantage_mask": torch.ones(3),
        "later_rewards": torch.zeros(3, 0),
        "rewards": torch.ones(3),
        "advantages": torch.tensor([1.0, -1.0, 0.5]),
        "loss_mask": torch.ones(3),
        "sample_index": torch.zeros(3, dtype=torch.long),
        "turn_index": torch.zeros(3, dtype=torch.long),
        "config": plugin_settings(resolve(["--eps-clip", "0.1", "--kl-loss-coef", "0.5"], {}).config),
        "clip_ratio": 0.1,
        "binary_weight": 0.25,
        "opd_weight": 2.0,
    }


def test_the_printed_losses_give_their_formulas(shared_dir: Path, tmp_path: Path, values: dict[str, Any]):
    policy, teacher = values["policy_logprobs"].detach(), values["teacher_logprobs"]
    gap = policy - values["reference_logprobs"]
    ratio, advantages = gap.exp(), values["advantages"]
    grpo = -torch.min(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages).mean() + 0.5 * gap.mean()
    far = policy - teacher
    distilled = torch.max(far * far.exp(), far * far.exp().clamp(0.9, 1.1)).mean()
    expected = {
        "custom_loss.py": grpo,
        "custom_opd_loss.py": distilled,
        "hybrid_loss.py": 0.25 * torch.tensor(-1.0) + 2.0 * far.mean(),
    }
    for file, number in expected.items():
        loss, metrics = load_loss(str(write(shared_dir, file, tmp_path)))(values)
        torch.testing.assert_close(loss.detach(), number, msg=file)
        loss.backward()
        assert file != "hybrid_loss.py" or set(metrics) == {"binary_loss", "opd_loss", "total_loss"}


def test_the_weights_of_the_file_reach_the_printed_hybrid_loss(shared_dir: Path, tmp_path: Path):
    hook = load_loss(str(write(shared_dir, "hybrid_loss.py", tmp_path)))
    assert {"opd_weight", "binary_weight", "clip_ratio"} <= hook.asks_for
    settings = plugin_settings(resolve(["--config", str(write(shared_dir, "training_config.yaml", tmp_path)),
                                        "--print-config"], {}).config)  # fmt: skip
    assert (settings["opd_weight"], settings["binary_weight"]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("file", "answer"),
    [
        ("rollout_opd.py", "--custom-generate-function-path"),
        ("terminal_rollout.py", "--custom-generate-function-path"),
        ("gui_rollout.py", "--custom-generate-function-path"),
        ("toolcall_trainer.py", "--custom-generate-function-path"),
        ("session_processor.py", "openclaw_combine.session_processor.SessionAwareProcessor"),
        ("lora_config.py", "--use-lora --lora-rank 16"),
        ("wandb_logging.py", "--use-wandb"),
    ],
)
@pytest.mark.parametrize("names_its_function", [False, True])
def test_a_printed_file_that_is_no_plug_in_is_answered_with_what_is(
    shared_dir: Path, tmp_path: Path, file: str, answer: str, names_its_function: bool
):
    path = str(write(shared_dir, file, tmp_path))
    if names_its_function:
        tree = compile(cut(shared_dir, file), file, "exec").co_consts
        code = next(const for const in tree if hasattr(const, "co_name"))
        path += f":{code.co_name}"
    with pytest.raises(PluginError) as caught:
        load_rollout(path)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rollout_of_ones_own_is_not_taken_for_a_printed_one(tmp_path: Path):
    file = tmp_path / "rollout_opd.py"
    file.write_text("def collect_opd_trajectory(): ...\nasync def generate_rollout(store):\n    yield\n")
    assert load_rollout(str(file))[1]


def test_the_printed_reward_class_names_what_the_page_leaves_out(shared_dir: Path, tmp_path: Path):
    file = write(shared_dir, "custom_reward.py", tmp_path)
    settings = plugin_settings(resolve(["--prm-model-path", "/rm"], {}).config)
    with pytest.raises(PluginError, match="'load_reward_model' is not defined; write it"):
        load_reward(str(file), settings)


def test_the_printed_session_processor_and_ours_agree(shared_dir: Path):
    printed: dict[str, Any] = {"compute_gae": _published_compute_gae}
    exec(compile(cut(shared_dir, "session_processor.py"), "session_processor.py", "exec"), printed)
    theirs, ours = printed["SessionAwareProcessor"](), SessionAwareProcessor()
    roles = ["user", "assistant", "tool", "assistant"]
    for processor in (theirs, ours):
        for number, role in enumerate(roles):
            processor.add_interaction("long", {"role": role, "reward": number / 2, "value": 0.1 * number})
        processor.add_interaction("short", {"role": "user", "reward": 1.0})
    (expected,), (found,) = theirs.get_training_trajectories(), ours.get_training_trajectories()
    assert found["interactions"] == expected["interactions"]
    torch.testing.assert_close(found["advantages"], torch.as_tensor(expected["advantages"]))
    assert len(ours.get_training_trajectories(min_turns=1)) == 2


def test_the_printed_yaml_resolves_with_a_note_for_every_key(shared_dir: Path, tmp_path: Path, capsys: Any):
    file = write(shared_dir, "training_config.yaml", tmp_path)
    resolution = resolve(["--config", str(file), "--print-config"], {})
    keys = [f"{section}.{key}" for section, inside in yaml.safe_load(file.read_text()).items() for key in inside]
    told = [*resolution.notices, *resolution.refusals]
    assert len(keys) == 24
    for key in keys:
        assert [line for line in told if f": {key}: " in line and not line.startswith("no effect")], key
    config = resolution.config
    assert (config.judge.judge_model, config.judge.judge_model_path) == ("gpt-4", "")
    assert (config.rollout.rollout_batch_size, config.rollout.num_rollout, config.trainer.lr) == (128, 10000, 1e-6)
    (idle,) = [line for line in told if line.startswith("no effect in this run")]
    assert all(key in idle for key in ("gae_lambda", "value_clip_ratio", "evaluation.judge_model"))
    with pytest.raises(ConfigError, match="tokenizer_path: the tokenizer is read from the model directory"):
        resolve(["--config", str(file)], {})


def test_the_printed_json_resolves_with_a_note_for_every_key(shared_dir: Path, tmp_path: Path):
    file = write(shared_dir, "rollout_config.json", tmp_path)
    json.loads(file.read_text())
    resolution = resolve(["--config", str(file)], {})
    assert len(resolution.notices) == 9 + 1  # nine keys, and that votes need --judge llm
    assert resolution.config.judge.majority_vote_n == 3


def test_a_judge_behind_an_api_without_a_url_is_refused_before_anything_is_sent(shared_dir: Path, tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors"):
        (model / name).touch()
    file = write(shared_dir, "evaluation.yaml", tmp_path)
    with pytest.raises(ConfigError, match="--judge-model gpt-4 is served by somebody: give --judge-url"):
        check_startup(resolve(["--config", str(file), "--model-path", str(model)], {}).config)


def test_the_printed_conversation_is_read(shared_dir: Path):
    conversation = parse_conversation(json.loads(cut(shared_dir, "session.json")), "page B")
    assert conversation is not None


def test_compute_gae_takes_the_printed_keywords():
    assert compute_gae(torch.tensor([1.0]), torch.tensor([0.0]), 0.99, 0.95).tolist() == [1.0]
