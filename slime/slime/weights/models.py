"""Models on disk: what training publishes and engines load, and what a user's model directory holds.

A weights directory is a Hugging Face model directory (config.json, tokenizer files, model.safetensors) with a manifest.

    state dict ─ guard against the template ─▶ version-3/ ─ verify ─▶ engines

A model directory without a manifest, a user's base model, is version 0. Nothing here reads a pickle.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from slime.errors import WeightsError
from slime.weights.directories import (
    MANIFEST_FILE,
    Manifest,
    atomic_directory,
    read_json,
    require_directory,
    verify_manifest,
    write_manifest,
)

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# What a model directory holds besides weights: configuration, tokenizer, chat template. Never code.
_TEMPLATE_SUFFIXES = (".json", ".txt", ".jinja", ".model")
_NOT_TEMPLATE = (MANIFEST_FILE, INDEX_FILE)
_FLOATING = ("F", "BF")  # how safetensors' names of floating types begin
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class _Index:
    """What the index of a sharded model says: each tensor's file."""

    weight_map: Mapping[str, str]


def write_weights(
    state_dict: Mapping[str, Tensor],
    weights_dir: str | Path,
    *,
    version: int,
    template_dir: str | Path,
    dtype: torch.dtype | Literal["template", "given"] = "given",
) -> Manifest:
    """Publish `state_dict` as a weights directory, atomically.

    Args:
        state_dict: tensors by the names they have in the template's files; it may also hold others that
            share their memory with these (tied embeddings), which are left out as they were there.
        weights_dir: the directory to make. One of that name is replaced.
        version: the policy version.
        template_dir: the model directory it was trained from; configuration and tokenizer are copied from it.
        dtype: what floating tensors are stored as: each as it is given, as the template stores it, or all in one type.

    Raises:
        WeightsError: names, shapes or kinds of the tensors differ from the template's, or a value is not finite, also
            in the type it is stored as. Nothing has been written then.
    """
    template_dir = Path(template_dir)
    tensors = _guard(state_dict, template_dir, dtype)
    with atomic_directory(weights_dir) as partial_dir:
        for file in sorted(template_dir.iterdir()):
            if file.is_file() and file.suffix in _TEMPLATE_SUFFIXES and file.name not in _NOT_TEMPLATE:
                shutil.copyfile(file, partial_dir / file.name)
        save_file(tensors, partial_dir / WEIGHTS_FILE, metadata={"format": "pt"})
        return write_manifest(partial_dir, version)


def verify_weights(weights_dir: str | Path) -> Manifest:
    """The manifest of a weights directory, after every file in it was compared with its hash.

    Raises:
        WeightsError: names the directory, the file, and what is wrong with it.
    """
    weights_dir = Path(weights_dir)
    require_model_files(weights_dir)
    if not (weights_dir / MANIFEST_FILE).is_file():
        return Manifest(version=0, files={})
    return verify_manifest(weights_dir, WEIGHTS_FILE)


def read_weights(weights_dir: str | Path) -> dict[str, Tensor]:
    """All tensors of a model directory, on the CPU, by the names they have in its files. Hashes are not checked."""
    weights_dir = Path(weights_dir)
    require_model_files(weights_dir)
    return {name: tensor for file in weight_files(weights_dir) for name, tensor in read_tensors(file).items()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, on the CPU; a `WeightsError` that names the file if it cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{file}: cannot be read: {error}") from None


def _guard(
    state_dict: Mapping[str, Tensor], template_dir: Path, dtype: torch.dtype | Literal["template", "given"]
) -> dict[str, Tensor]:
    """The tensors to publish, once nothing about them would surprise an engine that loads the template."""
    expected = _tensor_shapes(template_dir)
    if missing := sorted(set(expected) - set(state_dict)):
        raise WeightsError(
            f"refused to publish: {missing[0]} of {template_dir} is missing ({len(missing)} such tensors)"
        )
    published_memory = {state_dict[name].data_ptr() for name in expected}
    for name, tensor in state_dict.items():
        if name not in expected and tensor.data_ptr() not in published_memory:
            raise WeightsError(f"refused to publish: {name} is not a tensor of {template_dir}")
    published: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, (shape, stored) in expected.items():
        tensor = state_dict[name].detach()
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"refused to publish: {name} has shape {tuple(tensor.shape)}, and should have {shape}")
        if tensor.is_floating_point() != stored.startswith(_FLOATING) or tensor.dtype == torch.float64:
            raise WeightsError(f"refused to publish: {name} has dtype {tensor.dtype}")
        if tensor.is_floating_point():
            wanted = _DTYPES.get(stored, tensor.dtype) if dtype == "template" else dtype
            tensor = tensor if wanted == "given" else tensor.to(wanted)
            if not bool(torch.isfinite(tensor).all()):
                raise WeightsError(f"refused to publish: {name} holds a value that is not finite as {tensor.dtype}")
        # safetensors stores each tensor by itself: contiguous, and sharing memory with no other
        tensor = tensor.cpu().contiguous()
        published[name] = tensor.clone() if tensor.data_ptr() in memory else tensor
        memory.add(tensor.data_ptr())
    return published


def stored_dtypes(model_dir: Path) -> set[torch.dtype]:
    """The floating types that a model directory stores its tensors in, e.g. `{torch.bfloat16}`."""
    stored = {name for _, name in _tensor_shapes(model_dir).values() if name.startswith(_FLOATING)}
    return {_DTYPES.get(name, torch.float32) for name in stored}


def _tensor_shapes(model_dir: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and safetensors' name of the type, e.g. `BF16`, of each tensor in a model directory; only headers are
    read."""
    require_model_files(model_dir)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in weight_files(model_dir):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (not a mapping: it has no other way to list them)
                    header = tensors.get_slice(name)
                    shapes[name] = (tuple(header.get_shape()), header.get_dtype())
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file}: cannot be read: {error}") from None
    return shapes


def weight_files(model_dir: Path) -> list[Path]:
    """The safetensors files that make up a model: one, or the shards that its index names."""
    if (model_dir / WEIGHTS_FILE).is_file():
        return [model_dir / WEIGHTS_FILE]
    try:
        index = read_json(model_dir / INDEX_FILE, _Index, "an index of shards")
    except FileNotFoundError:
        return sorted(model_dir.glob("*.safetensors"))
    files = [model_dir / name for name in sorted(set(index.weight_map.values()))]
    for file in files:
        if file.parent != model_dir or not file.is_file():
            raise WeightsError(f"{model_dir}: no {file.name}, though {INDEX_FILE} names it")
    return files


def require_model_files(model_dir: Path) -> None:
    """A `WeightsError` that says in one line what a model directory lacks."""
    require_directory(model_dir)
    if not (model_dir / "config.json").is_file():
        raise WeightsError(f"{model_dir}: no config.json: not a Hugging Face model directory")
    if not any(model_dir.glob("*.safetensors")):
        pickles = any(model_dir.glob("*.bin")) or any(model_dir.glob("*.pt"))
        hint = (
            "its weights are pickles, which are never loaded; convert them first" if pickles else "no weights to load"
        )
        raise WeightsError(f"{model_dir}: no *.safetensors: {hint}")


def require_shapes(place: Path, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """A `WeightsError` where the tensors that were read from `place` have not the names and shapes of one's own."""
    for name in sorted(own.keys() | given.keys()):
        if name not in own or name not in given or own[name].shape != given[name].shape:
            raise WeightsError(f"{place}: of another model: {name} does not fit")
