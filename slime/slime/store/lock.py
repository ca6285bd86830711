"""One appending server per store: an advisory lock on a file beside it, which the kernel drops with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from slime.errors import ConfigError


class ServerLock:
    """Held from construction until `release` or the end of the process, however that comes.

    Raises:
        ConfigError: another process holds it, or the directory cannot be written.
    """

    def __init__(self, database: Path) -> None:
        path = database.with_name(database.name + ".lock")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}; choose another rl_buffer_dir") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise ConfigError(
                f"another server (process {holder}) stores its turns in {database.parent}; "
                "stop it, choose another rl_buffer_dir, or open the store with appends=False"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode("ascii"), 0)

    def release(self) -> None:
        os.close(self._fd)
