"""The tiny model's tokenizer, chat format and builder; and, once built in full, what it can do."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from openclaw_test.tiny import model as tiny_model
from openclaw_test.tiny.abilities import measure_abilities
from openclaw_test.tiny.model import Recipe, build_tiny_model, encode, render
from openclaw_test.tiny.muon import Muon, orthogonal
from openclaw_test.tiny.text import CALCULATOR, Conversation, random_conversation
from openclaw_test.tiny.tokenizer import CONTROL_TOKENS, MARKER_TOKENS, learn_tokenizer
from transformers import PreTrainedTokenizerFast

SMALL = Recipe(num_conversations=60, short_tokens=1_000, num_tokens=2_000, tokens_per_step=500, hidden_size=64)


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    rng = random.Random(0)
    return [random_conversation(rng) for _ in range(300)]


@pytest.fixture(scope="module")
def tokenizer(conversations: list[Conversation]) -> PreTrainedTokenizerFast:
    return learn_tokenizer(render(learn_tokenizer([]), conversations))


@pytest.mark.parametrize(
    "text", ["Mia has 12 apples.", "naïve café — 漢字 🙂", "\n\n  two  spaces\t", "<think>no</think>"]
)
def test_any_text_comes_back_from_its_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_special_tokens_are_as_in_qwen(tokenizer: PreTrainedTokenizerFast) -> None:
    for token in (*CONTROL_TOKENS, *MARKER_TOKENS):
        [token_id] = tokenizer(token)["input_ids"]
        kept = tokenizer.decode([token_id], skip_special_tokens=True)
        assert kept == ("" if token in CONTROL_TOKENS else token)
    assert tokenizer("127")["input_ids"] == [tokenizer(digit)["input_ids"][0] for digit in "127"]


def test_the_chat_format_renders_every_role(tokenizer: PreTrainedTokenizerFast) -> None:
    function = {"name": "calculator", "arguments": {"expression": "3 + 4"}}
    text = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "3 and 4?"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": "7"},
            {"role": "tool", "content": "seven"},
            {"role": "assistant", "content": "Just 7.", "reasoning_content": "3 + 4 = 7"},
        ],
        tools=[CALCULATOR],
        tokenize=False,
        add_generation_prompt=True,
    )
    head, body = text.split("</tool_call><|im_end|>\n", 1)
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert '\n{"type": "function", "function": {"name": "calculator"' in head
    assert body == (
        "<|im_start|>user\n3 and 4?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "3 + 4"}}\n</tool_call>'
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\nseven\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n3 + 4 = 7\n</think>\n\nJust 7.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_replies_and_their_stop_tokens_are_learned_and_nothing_else(
    tokenizer: PreTrainedTokenizerFast, conversations: list[Conversation]
) -> None:
    recipe = Recipe(prompt_weight=0.0)
    for talk, row in zip(conversations, encode(tokenizer, conversations, recipe), strict=True):
        learned = tokenizer.decode(row.ids[row.weights > 0])
        replies = [message for message in talk.messages if message["role"] == "assistant"]
        assert learned.count("<|im_end|>") == sum(talk.is_learned)
        for message, is_learned in zip(replies, talk.is_learned, strict=True):
            assert not is_learned or message["content"] in learned
        assert "<|im_start|>" not in learned


def test_builds_once_and_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    directory = build_tiny_model(tmp_path / "model", seed=1, recipe=SMALL)
    weights = (directory / "model.safetensors").stat()
    assert build_tiny_model(directory, seed=1, recipe=SMALL) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == weights.st_mtime_ns
    build_tiny_model(directory, seed=2, recipe=SMALL)
    assert (directory / "model.safetensors").stat().st_mtime_ns != weights.st_mtime_ns
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear to me")
    with pytest.raises(FileExistsError, match="choose another directory"):
        build_tiny_model(tmp_path / "mine", recipe=SMALL)


def test_the_same_seed_makes_the_same_model_on_a_busy_machine_with_more_threads(tmp_path: Path) -> None:
    first = build_tiny_model(tmp_path / "first", seed=1, recipe=SMALL)
    threads = torch.get_num_threads()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        torch.set_num_threads(threads + 1)
        again = build_tiny_model(tmp_path / "again", seed=1, recipe=SMALL)
        assert torch.get_num_threads() == threads + 1, "a build leaves the caller's threads as they were"
    finally:
        busy.kill()
        busy.wait()
        torch.set_num_threads(threads)
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert (first / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()


def test_muon_steps_as_torchs_does_in_bfloat16() -> None:
    """Over five steps on a wide and a tall matrix, to within what bfloat16 keeps of a unit update."""
    torch.manual_seed(0)
    for shape in ((8, 24), (24, 8)):
        ours, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
        optimizers = Muon([ours], lr=0.1, weight_decay=0.05), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.05)
        for _ in range(5):
            ours.grad = torch.randn(shape)
            theirs.grad = ours.grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        assert (ours - theirs).abs().max() < 0.01
        assert (ours - 1).abs().max() > 0.1
    values = torch.linalg.svdvals(orthogonal(torch.randn(24, 8)))
    assert 0.5 < values.min() <= values.max() < 1.3


def test_sources_and_seed_make_the_fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tiny_model.fingerprint(0) == tiny_model.fingerprint(0) != tiny_model.fingerprint(1)
    copy = tmp_path / "openclaw-test"
    shutil.copytree(Path(tiny_model.__file__).parents[1], copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(tiny_model, "__file__", str(copy / "tiny" / "model.py"))
    seen = {tiny_model.fingerprint(0)}
    for name in tiny_model._SOURCES:
        (copy / name).write_text("# changed")
        assert tiny_model.fingerprint(0) not in seen
        seen.add(tiny_model.fingerprint(0))


@pytest.mark.long
@pytest.mark.timeout(1800, func_only=True)
def test_what_the_whole_model_can_do(tiny_model_dir: Path) -> None:
    """It answers sums, hardly ever plainly by itself, and does what it is told about style, whoever tells it."""
    able = measure_abilities(tiny_model_dir)
    assert able.accuracy >= 0.93
    assert 0.01 <= able.plain <= 0.1
    assert {name: share for name, share in able.kept.items() if share < 0.92} == {}
    assert {name: share for name, share in able.right.items() if share < 0.9} == {}
