"""Atomic directories with a manifest of hashes: written whole or not at all, verified before they are read.

    .version-3.partial/ ─ fill ─ manifest ─ fsync ─ rename ─▶ version-3/ ─ verify the manifest ─▶ its readers

`manifest.json` names every file with its size and hash, and the policy version that they make up.
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
from typing import TypeVar

from pydantic import TypeAdapter

from slime.errors import WeightsError

FORMAT = 1
MANIFEST_FILE = "manifest.json"
_NUM_SYNCED = 8  # files and directories at once
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


@contextmanager
def atomic_directory(target: str | Path) -> Iterator[Path]:
    """A directory to fill, which takes the name `target` at the end, durably; nothing remains of it on an error.

    It lies beside the target, since a rename is atomic within one file system only. A target that is
    there already is moved aside first and removed last; for the moment between, neither is there.
    One that is made within another becomes durable with that one, which is the first to be seen.
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


def link_directory(source: Path, target: Path, version: int) -> Manifest:
    """The same files under a second name, as another version: linked where the disk allows it, else copied.

    Neither may be changed in place afterwards; either may be removed.
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


def require_directory(directory: Path) -> None:
    """A `WeightsError` where there is no directory of that name."""
    if not directory.is_dir():
        raise WeightsError(f"{directory}: " + ("not a directory" if directory.exists() else "no such directory"))


def _files_below(directory: Path) -> list[str]:
    """Every file below a directory but its own manifest, as relative paths."""
    paths = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())
    return sorted(name for name in paths if name != MANIFEST_FILE)


def _record(file: Path) -> FileRecord:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=32))
        return FileRecord(stream.tell(), digest.hexdigest())


def _sync_tree(directory: Path) -> None:
    """Make a directory and all below it durable, in any order: it is seen when all of it is.

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
