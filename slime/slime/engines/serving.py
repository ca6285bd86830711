"""Where a running server keeps its turns and engines: a file beside the captured turns that only its owner reads.

    openclaw.server ─ write ─▶ rl_buffer/serving.json (0600) ─ read ─▶ collect_rollouts.py, train_async.py

Clients are told none of it: with an engine's address and token, weights are changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from slime.errors import ConfigError
from slime.private_files import write_private

SERVING_FILE = "serving.json"


@dataclass(frozen=True, slots=True)
class Serving:
    """A server as a collector and a trainer of the same machine need to know it.

    Attributes:
        adapter_per: whose adapter it asks for a reply, `run` or `user`; empty: the weights that engines serve whole.

    >>> Serving("http://127.0.0.1:8000", "/models/tiny", "/work/rl_buffer", ("http://127.0.0.1:40001",), "ock-…")
    """

    api_endpoint: str
    model_path: str
    rl_buffer_dir: str
    engine_urls: tuple[str, ...]
    engine_token: str = ""
    adapter_per: str = ""

    def write(self, directory: Path) -> None:
        write_private(directory / SERVING_FILE, json.dumps(asdict(self), indent=2) + "\n")


def read_serving(directory: Path) -> Serving | None:
    """What is written there, or None. Raises ConfigError for a file that is not ours."""
    file = directory / SERVING_FILE
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return Serving(**said | {"engine_urls": tuple(said["engine_urls"])})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; it is for the user who runs the server") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: not what a server of ours writes: {error!r}") from error
