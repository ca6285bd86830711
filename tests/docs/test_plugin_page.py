"""The examples of docs/plugins.md are run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from slime.config.sections import Config
from slime.plugins.hooks import LOSS, REWARD, ROLLOUT, load_hook
from slime.plugins.losses import load_loss
from slime.plugins.rewards import load_reward
from slime.plugins.settings import plugin_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs/plugins.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def example(directory: Path, file_name: str, containing: str = "") -> str:
    """The example of that file name, written to a folder with a dash in its name; its path."""
    (source,) = [e for e in EXAMPLES if e.startswith(f"# my-method/{file_name}\n") and containing in e]
    folder = directory / "my-method"
    folder.mkdir()
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


def test_the_reward_function(tmp_path):
    hook = load_reward(example(tmp_path, "custom_rm.py", "def reward"), {})
    assert hook.call({"prompt": "", "response": "", "next_state": "Thank you!"}) == 1.0
    assert hook.call({"prompt": "", "response": "", "next_state": "No."}) == -1.0


def test_the_reward_model(tmp_path):
    hook = load_reward(example(tmp_path, "custom_rm.py", "class Lengths"), {"default_max_tokens": 3})
    assert (hook.call({"response": "abc"}), hook.call({"response": "abcd"})) == (1.0, -1.0)


def test_the_rollout(tmp_path):
    call = load_hook(ROLLOUT, example(tmp_path, "custom_rollout.py"))
    assert call.asks_for == {"store", "judge", "owner", "policy_version", "config"}


def test_every_name_on_offer_is_on_the_page():
    for hook in (LOSS, REWARD, ROLLOUT):
        assert hook.flag in PAGE
        for name in (*hook.names, *hook.default_names):
            assert f"`{name}`" in PAGE, f"{hook.flag}: {name}"
