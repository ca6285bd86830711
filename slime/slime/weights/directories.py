"""Directories of weights: written whole or not at all, and never loaded unless they are what was written.

A weights directory is a Hugging Face model directory (config.json, tokenizer files, model.safetensors)
plus `manifest.json`, which names every file with its size and hash, and the policy version they make up.

    state dict ─ guard ─▶ .version-3.partial/ ─ fsync ─ manifest ─ rename ─▶ version-3/ ─ verify ─▶ engines

A model directory without a manifest, a user's base model, is version 0. Nothing here reads a pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Literal, TypeVar

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from slime.errors import WeightsError

FORMAT = 1
MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_CHUNK_BYTES = 1 << 22
_NUM_SYNCED = 8  # files and directories at once
# What a model directory holds besides weights: configuration, tokenizer, chat template. Never code.
_TEMPLATE_SUFFIXES = (".json", ".txt", ".jinja", ".model")
_NOT_TEMPLATE = (MANIFEST_FILE, INDEX_FILE)
_FLOATING = ("F", "BF")  # how safetensors' names of floating types begin
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a directory: its size, and its blake2b-256 hash in hexadecimal."""

    bytes: int
    blake2b: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a directory holds.

    >>> Manifest(version=3, files={"model.safetensors": FileRecord(3421184, "9f2c…")})

    Attributes:
        version: the policy version the files make up; 0 is the model as the user gave it.
        files: by path relative to the directory, `/` between its parts; empty for a directory without a manifest.
        adapter: whose adapter it is, e.g. `policy`; empty for anything but an adapter.
        base: fingerprint of the weights that an adapter was trained on.
    """

    version: int
    files: Mapping[str, FileRecord]
    format: int = FORMAT
    adapter: str = ""
    base: str = ""


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
    tensors: dict[str, Tensor] = {}
    for file in weight_files(weights_dir):
        tensors.update(read_tensors(file))
    return tensors


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file, on the CPU; a `WeightsError` that names the file if it cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{file}: cannot be read: {error}") from None


@contextmanager
def atomic_directory(target: str | Path) -> Iterator[Path]:
    """A directory to fill, which takes the name `target` at the end, durably; nothing remains of it on an error.

    It lies beside the target, since a rename is atomic within one file system only. A target that is
    there already is moved aside first and removed last; for the moment between, neither is there.
    One that is made within another becomes durable with that one, which is the first that anybody sees.
    """
    target = Path(target)
    is_inner = any(part.startswith(".") and part.endswith(".partial") for part in target.parent.parts)
    partial, replaced = (target.with_name(f".{target.name}.{word}") for word in ("partial", "replaced"))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    shutil.rmtree(replaced, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if not is_inner:
            _sync_tree(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.exists():
        target.rename(replaced)
    partial.rename(target)
    if not is_inner:
        fsync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_manifest(directory: Path, version: int, *, adapter: str = "", base: str = "") -> Manifest:
    """Write `manifest.json` over everything that lies in the directory now; files are hashed as read back."""
    files = {name: _record(directory / name) for name in _files_below(directory)}
    manifest = Manifest(version=version, files=files, adapter=adapter, base=base)
    (directory / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    return manifest


def verify_manifest(directory: Path, *required: str) -> Manifest:
    """Compare every file below a directory with its manifest: none missing, none changed, none added.

    Args:
        required: files that the manifest must name.
    """
    manifest = read_manifest(directory)
    if lacking := sorted(set(required) - set(manifest.files)):
        raise WeightsError(f"{directory}: its manifest names no {lacking[0]}")
    present = set(_files_below(directory))
    if missing := sorted(set(manifest.files) - present):
        raise WeightsError(f"{directory}: {missing[0]} is missing, though the manifest names it")
    if added := sorted(present - set(manifest.files)):
        raise WeightsError(f"{directory}: {added[0]} was added after the manifest was written")
    for name, expected in manifest.files.items():
        size = (directory / name).stat().st_size
        if size != expected.bytes:
            raise WeightsError(f"{directory}: {name} has {size} bytes, and should have {expected.bytes}")
        if _record(directory / name) != expected:
            raise WeightsError(f"{directory}: {name} is corrupt: its hash is not the one in the manifest")
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """The manifest as it stands in the file, the directory's files unchecked."""
    file = directory / MANIFEST_FILE
    try:
        manifest = read_json(file, Manifest, "a manifest")
    except FileNotFoundError:
        raise WeightsError(f"{directory}: no {MANIFEST_FILE}: it was not written to its end") from None
    if manifest.format != FORMAT:
        raise WeightsError(f"{file}: format {manifest.format}; this program reads format {FORMAT}")
    return manifest


def read_json(file: Path, kind: type[_Content], what: str) -> _Content:
    """A JSON file as `kind`, its types checked.

    Raises:
        FileNotFoundError: there is no such file.
        WeightsError: it is not `what`, e.g. `a manifest`; in one line.
    """
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise WeightsError(f"{file}: not {what}: {' '.join(str(error).split())[:300]}") from None


def require_shapes(place: Path, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """A `WeightsError` where the tensors that were read from `place` have not the names and shapes of one's own."""
    for name in sorted(own.keys() | given.keys()):
        if name not in own or name not in given or own[name].shape != given[name].shape:
            raise WeightsError(f"{place}: of another model: {name} does not fit")


def link_directory(source: Path, target: Path, version: int) -> Manifest:
    """The same files under a second name, as another version: linked where the disk allows it, else copied.

    Neither may be changed in place afterwards, which nobody does; either may be removed.
    """
    manifest = dataclasses.replace(read_manifest(source), version=version)
    with atomic_directory(target) as partial_dir:
        for name in manifest.files:
            place = partial_dir / name
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / name, place)
            except OSError:  # another file system, or one without links
                shutil.copyfile(source / name, place)
        (partial_dir / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    return manifest


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
    for name, (shape, stored) in expected.items():
        tensor = state_dict[name]
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"refused to publish: {name} has shape {tuple(tensor.shape)}, and should have {shape}")
        if tensor.is_floating_point() != stored.startswith(_FLOATING) or tensor.dtype == torch.float64:
            raise WeightsError(f"refused to publish: {name} has dtype {tensor.dtype}")
    published: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, (_, stored) in expected.items():
        tensor = state_dict[name].detach()
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


def require_directory(directory: Path) -> None:
    """A `WeightsError` where there is no directory of that name."""
    if not directory.is_dir():
        raise WeightsError(f"{directory}: " + ("not a directory" if directory.exists() else "no such directory"))


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


def _files_below(directory: Path) -> list[str]:
    """Every file below a directory but its own manifest, as relative paths."""
    paths = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())
    return sorted(name for name in paths if name != MANIFEST_FILE)


def _record(file: Path) -> FileRecord:
    digest, size = hashlib.blake2b(digest_size=32), 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())


def _sync_tree(directory: Path) -> None:
    """Make a directory and all below it durable, in any order: nothing reads it before all of it is.

    Side by side, because a disk flushes its cache once for several that wait for it.
    """
    paths = [Path(parent, name) for parent, _, names in os.walk(directory) for name in (".", *names)]
    with ThreadPoolExecutor(_NUM_SYNCED, thread_name_prefix="fsync") as threads:
        list(threads.map(fsync, paths))


def fsync(path: Path) -> None:
    """Make a file, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def numbered(folder: Path, kind: str) -> dict[int, Path]:
    """The directories of a folder that are called e.g. `checkpoint-7`, by number, the highest first."""
    names = ((path.name.removeprefix(f"{kind}-"), path) for path in folder.glob(f"{kind}-*") if path.is_dir())
    return dict(sorted(((int(number), path) for number, path in names if number.isdecimal()), reverse=True))


def remove(directories: Iterable[Path], folder: Path, kind: str) -> None:
    """Take directories of a folder out of sight at once, and off the disk in a thread, with what killed writers left.

    Disks take their time, and engines wait for what was written.
    """
    for directory in directories:
        directory.rename(directory.with_name(f".{directory.name}.{time.time_ns()}.removed"))
    if leftovers := list(folder.glob(f".{kind}-*")):
        Thread(target=_remove, args=(leftovers,), name="remove").start()


def _remove(directories: Iterable[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)  # a thread that a later removal started may be quicker
