"""`python collect_rollouts.py`: what a server captures, copied turn by turn into a directory that a trainer reads.

    python serve_model.py --model-path DIR --port 8000          people talk to it; it captures
    python collect_rollouts.py --api-endpoint http://localhost:8000 --output-dir ./rollouts --session-aware
    python train_async.py --rollout-dir ./rollouts --checkpoint-dir ./checkpoints --method combine

    server's buffer ─ what is new, every second ─▶ rollouts/turns.sqlite3 ─▶ the trainer: claims, verdicts, updates
    GET /v1/models ─ model, engines ─────────────▶ rollouts/serving.json  ─▶ the trainer: whom it publishes to

Three programs by hand do what `python slime/train.py` does in one. They are of one machine: the collector reads the
buffer's file, and engines load published weights from a path.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp

from slime.config.loader import load_config
from slime.data.conversation_files import parse_conversation
from slime.errors import ConfigError, OpenClawError, StoreError
from slime.monitor import configure_logging
from slime.rollout.transfer import adopt, export_sessions, is_store
from slime.store import Changes, Store

log = logging.getLogger(__name__)

PROG = "python collect_rollouts.py"
SERVING_FILE = "serving.json"
_LOOK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Serving:
    """A server as its trainer needs to know it.

    >>> Serving("http://localhost:8000", "/models/tiny", "/work/rl_buffer", ("http://127.0.0.1:40001",))
    """

    api_endpoint: str
    model_path: str
    rl_buffer_dir: str
    engine_urls: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Collect until told to stop; the exit status."""
    parser = argparse.ArgumentParser(prog=PROG, allow_abbrev=False, description="Copy what a server captures.")
    parser.add_argument("--api-endpoint", required=True, metavar="URL", help="of the server, with or without /v1")
    parser.add_argument("--output-dir", required=True, type=Path, metavar="DIR", help="where turns are collected")
    parser.add_argument("--session-aware", action="store_true", help="keep turns by session; so in any case")
    given = parser.parse_args(argv)
    server = load_config([], prog=PROG, sections=["server"]).server
    configure_logging(server.log_level)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_collect_until_stopped(given.api_endpoint, given.output_dir, server.api_key))
    except OpenClawError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def _collect_until_stopped(api_endpoint: str, output_dir: Path, api_key: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    serving = await ask(api_endpoint, api_key)
    await collect(serving, output_dir)


async def ask(api_endpoint: str, api_key: str = "") -> Serving:
    """What a server says of itself.

    Raises:
        ConfigError: nobody answers there, it does not capture, or it keeps its turns on another machine.
    """
    base = api_endpoint.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {api_key or 'local'}"}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(f"{base}/v1/models") as answer,
        ):
            status, body = answer.status, await answer.read()
        if status != 200:
            raise ConfigError(f"--api-endpoint {api_endpoint} answers {status}; is OPENCLAW_API_KEY its key?")
        said = json.loads(body)["data"][0].get("openclaw")
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(
            f"--api-endpoint {api_endpoint}: no server of ours answers ({type(error).__name__}); start serve_model.py"
        ) from error
    if not said:
        raise ConfigError(f"--api-endpoint {api_endpoint} captures nothing: start it with --enable-rl-intercept")
    serving = Serving(base, said["model_path"], said["rl_buffer_dir"], tuple(said["engine_urls"]))
    if not is_store(Path(serving.rl_buffer_dir)):
        raise ConfigError(f"{serving.rl_buffer_dir} is not on this machine: collect where {api_endpoint} runs")
    return serving


async def collect(serving: Serving, output_dir: Path, *, forever: bool = True) -> int:
    """Copy what is stored, and what comes; returns the number of new turns, if it ever returns.

    Args:
        forever: go on looking; without, end when nothing is new.
    """
    async with Store.open(output_dir) as target, Store.open(serving.rl_buffer_dir, appends=False) as source:
        _write(output_dir / SERVING_FILE, serving)
        log.info("collecting from=%s into=%s", serving.rl_buffer_dir, output_dir)
        number, seen = 0, Changes()
        while True:
            try:
                seen, session_ids = await source.changes_after(seen)
                new = await _copy(source, target, session_ids) if session_ids else 0
            except StoreError as error:  # locked for a moment, say; what was not copied is still new
                log.warning("not collected, trying again error=%s", error)
                seen = Changes()
            else:
                number += new
                if new:
                    log.info("turns collected number=%d total=%d", new, number)
                if not forever and not session_ids:
                    return number
            await asyncio.sleep(_LOOK_EVERY_S if forever else 0)


async def _copy(source: Store, target: Store, session_ids: Sequence[str]) -> int:
    new = 0
    async for session in export_sessions(source, session_ids):
        new += (await adopt(target, parse_conversation(session, str(source.path)))).stored
    return new


def _write(file: Path, serving: Serving) -> None:
    file.write_text(json.dumps(asdict(serving), indent=2) + "\n", encoding="utf-8")


async def training_flags(rollout_dir: Path, api_key: str = "") -> list[str]:
    """How a training run is told to work on a directory of rollouts.

    While the server they come from runs, beside it: on its engines, on turns as they are collected. Else offline, on
    what is there: collected turns, or conversation files.
    """
    file = rollout_dir / SERVING_FILE
    if not file.is_file():
        return ["--data-path", str(rollout_dir)]
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        flags = ["--model-path", known["model_path"]]
        endpoint = known["api_endpoint"]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{file}: not what collect_rollouts.py writes: {error!r}") from error
    try:
        serving = await ask(endpoint, api_key)
    except ConfigError as error:
        log.warning("training offline: %s", error)
        return [*flags, "--data-path", str(rollout_dir)]
    log.info("training beside server=%s", endpoint)
    urls = ",".join(serving.engine_urls)
    return [*flags, "--rl-buffer-dir", str(rollout_dir), "--engine-url", urls, "--no-serve"]
