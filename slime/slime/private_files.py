"""Files that only their owner may read: logs, keys, exports, addresses of engines.

make_private_dir("run/logs")       0700, its missing parents too
write_private("…/serving.json", …) 0600, whole or not at all
open_private("…/engine.log")       0600, appended to
secret("…/admin.key")              drawn once, kept in a file, the same ever after
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from slime.errors import ConfigError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
_MAX_SECRET_CHARS = 512


def make_private_dir(path: Path) -> Path:
    """Make a directory and its missing parents, each 0700; one that is there stays as it is."""
    for missing in reversed([path, *path.parents]):
        if not missing.is_dir():
            missing.mkdir(mode=0o700, exist_ok=True)
    return path


def check_private_dir(path: Path, setting: str) -> None:
    """Raise ConfigError for a directory that other users may put files into.

    Args:
        setting: the flag that names it, e.g. `--rl-buffer-dir`.
    """
    found = path.stat()
    if found.st_mode & _OTHERS_WRITE:
        raise ConfigError(
            f"{setting} {path}: other users may write there (mode {found.st_mode & 0o7777:o}); chmod go-w {path}"
        )
    if os.geteuid() not in (0, found.st_uid):
        raise ConfigError(
            f"{setting} {path}: the directory belongs to another user (uid {found.st_uid}); choose one of yours"
        )


def open_private(path: Path, *, truncate: bool = False) -> BinaryIO:
    """A file for writing, 0600 whatever it was before; appended to unless it is to begin anew."""
    make_private_dir(path.parent)
    how = os.O_TRUNC if truncate else os.O_APPEND
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # /dev/null and pipes stay as they are
            os.fchmod(descriptor, 0o600)
    except PermissionError:
        pass  # another user's, and writable all the same: the mode is its owner's affair
    return os.fdopen(descriptor, "wb" if truncate else "ab")


def write_private(path: Path, text: str) -> None:
    """Put a text into a file, 0600; a reader sees the whole old text or the whole new one."""
    make_private_dir(path.parent)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def new_secret() -> str:
    """A random key of 256 bits, e.g. `ock-7Vv…`."""
    return f"ock-{secrets.token_urlsafe(32)}"


def secret(path: Path) -> str:
    """The secret that a file keeps; drawn, and kept there, the first time.

    Raises:
        ConfigError: other users can read the file, or it holds none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        drawn = new_secret()
        write_private(path, drawn + "\n")
        return drawn
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; delete it, and a new key is drawn") from error
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        kept = file.read(_MAX_SECRET_CHARS).strip()
    if mode & (_OTHERS_READ | _OTHERS_WRITE):
        raise ConfigError(
            f"{path}: other users can read this key (mode {mode & 0o777:o}); delete it, and a new one is drawn"
        )
    if not kept:
        raise ConfigError(f"{path} holds no key; delete it, and one is drawn")
    return kept
