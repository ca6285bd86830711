"""Checks a model directory before anything is started: a wrong path costs a second and one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime.errors import ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_CHAT_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def check_model_dir(path: str | Path, setting: str = "--model-path") -> Path:
    """The directory, if a policy can be loaded from it: configuration, tokenizer, chat template, safetensors.

    Args:
        path: what the user wrote, e.g. `~/models/Qwen3-8B`.
        setting: where they wrote it, for the message.

    Raises:
        ConfigError: one line that says what is missing and what to do.
    """
    if not str(path):
        raise ConfigError(f"no model: give {setting} DIR; `openclaw-rl tiny-model DIR` makes a small one in minutes")
    model_dir = Path(path).expanduser()
    where = f"{setting} {path}"
    if not model_dir.exists():
        if str(path).count("/") == 1 and not str(path).startswith((".", "/", "~")):
            raise ConfigError(
                f"{where}: no such directory; a run downloads nothing: `hf download {path} --local-dir DIR` first"
            )
        if "tiny" in model_dir.name:
            raise ConfigError(f"{where}: no such directory; `openclaw-rl tiny-model {path}` makes a small model there")
        raise ConfigError(f"{where}: no such directory; give the one that holds config.json, tokenizer and weights")
    if not model_dir.is_dir():
        raise ConfigError(f"{where}: not a directory; give the directory that holds config.json")
    if not _read_json(model_dir / "config.json", where, "is this a Hugging Face model directory?").get("model_type"):
        raise ConfigError(f"{where}: config.json names no model_type; transformers cannot tell what model this is")
    if not any((model_dir / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(f"{where}: no tokenizer ({', '.join(_TOKENIZER_FILES)}); copy it from the original model")
    _check_chat_template(model_dir, where)
    _check_weights(model_dir, where)
    return model_dir


def parameter_bytes(model_dir: Path) -> int:
    """What the weights take on disk: two bytes a parameter in bf16, as most models are given."""
    return sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))


def writes_function_tags(model_dir: Path) -> bool:
    """Whether the chat template spells tool calls `<function=name>`, as Qwen3.5's does, instead of JSON."""
    for name in (*_CHAT_TEMPLATE_FILES, "tokenizer_config.json"):
        file = model_dir / name
        if file.is_file():
            return "<function=" in file.read_text(encoding="utf-8", errors="replace")
    return False


def refuse_float16(dtype: str, model_dir: str | Path, *, on_gpu: bool) -> None:
    """Training computes in bfloat16 or float32: in float16 small gradients vanish, and nothing scales them here.

    Args:
        dtype: what `--dtype` says; `auto` is the stored type on a GPU.

    Raises:
        ConfigError: it would compute in float16.
    """
    if dtype == "auto" and on_gpu:
        settings = json.loads((Path(model_dir).expanduser() / "config.json").read_text(encoding="utf-8"))
        stored = settings.get("dtype") or settings.get("torch_dtype")
        if str(stored).removeprefix("torch.") != "float16":
            return
        dtype = f"auto, with {model_dir} stored in float16"
    elif dtype != "float16":
        return
    raise ConfigError(
        f"--dtype {dtype}: small gradients vanish in float16 and nothing scales them here; train with --dtype bfloat16 "
        "or --dtype float32"
    )


def _check_chat_template(model_dir: Path, where: str) -> None:
    if any((model_dir / name).is_file() for name in _CHAT_TEMPLATE_FILES):
        return
    settings = _read_json(model_dir / "tokenizer_config.json", where, "the chat template is read from it")
    if not settings.get("chat_template"):
        raise ConfigError(
            f"{where}: no chat template in tokenizer_config.json or chat_template.jinja; use a chat model"
        )


def _check_weights(model_dir: Path, where: str) -> None:
    index = model_dir / "model.safetensors.index.json"
    if index.is_file():
        shards = set(_read_json(index, where, "").get("weight_map", {}).values())
        missing = sorted(shard for shard in shards if not (model_dir / shard).is_file())
        if missing:
            raise ConfigError(
                f"{where}: {len(missing)} of {len(shards)} weight files missing, e.g. {missing[0]}; download again"
            )
        return
    if any(model_dir.glob("*.safetensors")):
        return
    if any(model_dir.glob("*.bin")) or any(model_dir.glob("*.pt")):
        raise ConfigError(f"{where}: weights only as pickles, which are never loaded; convert them to safetensors")
    raise ConfigError(f"{where}: no *.safetensors weights; the download may be incomplete")


def _read_json(file: Path, where: str, remark: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{where}: no {file.name}" + (f"; {remark}" if remark else "")) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: cannot read {file.name}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: {file.name} is not a JSON object")
    return content
