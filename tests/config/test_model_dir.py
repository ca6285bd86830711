"""A wrong model directory is answered before anything starts, in one line that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slime.config.model_dir import check_model_dir, refuse_float16
from slime.errors import ConfigError


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """The files of a model; nobody loads them here."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def refusal(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_model_dir(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "DIR") if str(path) else str(caught.value)


def test_a_whole_one_passes(model_dir):
    assert check_model_dir(str(model_dir)) == model_dir


def test_a_template_in_its_own_file_passes(model_dir):
    (model_dir / "tokenizer_config.json").write_text("{}")
    (model_dir / "chat_template.jinja").write_text("{{ messages }}")
    assert check_model_dir(model_dir) == model_dir


@pytest.mark.parametrize(
    ("remove", "expected"),
    [
        ("config.json", "--model-path DIR: no config.json; is this a Hugging Face model directory?"),
        (
            "tokenizer.json",
            "--model-path DIR: no tokenizer (tokenizer.json, tokenizer.model, vocab.json); copy it from",
        ),
        ("tokenizer_config.json", "--model-path DIR: no tokenizer_config.json; the chat template is read from it"),
        ("model.safetensors", "--model-path DIR: no *.safetensors weights; the download may be incomplete"),
    ],
)
def test_a_missing_file_is_named(model_dir, remove, expected):
    (model_dir / remove).unlink()
    assert refusal(model_dir).startswith(expected)


def test_nothing_given():
    assert refusal("") == "no model: give --model-path DIR; `openclaw-rl tiny-model DIR` makes a small one in minutes"


def test_a_missing_directory():
    said = "--model-path DIR: no such directory; give the one that holds config.json, tokenizer and weights"
    assert refusal("./none") == said
    assert refusal("./runs/tiny-model").endswith(
        "no such directory; `openclaw-rl tiny-model DIR` makes a small model there"
    )


def test_a_hub_name_is_not_downloaded():
    assert "a run downloads nothing: `hf download DIR --local-dir DIR` first" in refusal("Qwen/Qwen3-8B")


def test_a_file_is_not_a_directory(model_dir):
    assert refusal(model_dir / "config.json").endswith("not a directory; give the directory that holds config.json")


def test_broken_and_empty_configurations(model_dir):
    (model_dir / "config.json").write_text("{")
    assert "cannot read config.json" in refusal(model_dir)
    (model_dir / "config.json").write_text("{}")
    assert "names no model_type" in refusal(model_dir)


def test_a_missing_shard_is_named(model_dir):
    (model_dir / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}})
    )
    assert "1 of 2 weight files missing, e.g. model-00002.safetensors" in refusal(model_dir)


def test_pickles_are_never_loaded(model_dir):
    (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
    assert "weights only as pickles" in refusal(model_dir)


def test_no_chat_template(model_dir):
    (model_dir / "tokenizer_config.json").write_text("{}")
    assert "no chat template" in refusal(model_dir)


def test_training_in_float16_is_refused_before_anything_is_started(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "torch_dtype": "float16"}')
    refuse_float16("auto", tmp_path, on_gpu=False)
    refuse_float16("float32", tmp_path, on_gpu=True)
    with pytest.raises(ConfigError, match=r"stored in float16: small gradients vanish .* --dtype bfloat16 or"):
        refuse_float16("auto", tmp_path, on_gpu=True)
    with pytest.raises(ConfigError, match="--dtype float16: small gradients vanish"):
        refuse_float16("float16", tmp_path, on_gpu=False)
