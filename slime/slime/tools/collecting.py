"""Collection: `python collect_rollouts.py` copies what a server captures into a directory that a trainer reads.

    python serve_model.py --model-path DIR --port 8000          people talk to it; it captures
    python collect_rollouts.py --api-endpoint http://localhost:8000 --output-dir ./rollouts --session-aware
    python train_async.py --rollout-dir ./rollouts --checkpoint-dir ./checkpoints --method combine

    server's buffer ─ what is new, every second ─▶ rollouts/turns.sqlite3 ─▶ the trainer: claims, verdicts, updates
    rl_buffer/serving.json ─ model, engines ─────▶ rollouts/serving.json  ─▶ the trainer: whom it publishes to

Three programs by hand do what `python slime/train.py` does in one. They are of one machine and one user: the collector
reads the buffer's files, and engines load published weights from a path.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from slime.config.loader import load_config
from slime.config.output_paths import output_path
from slime.data.conversation_files import parse_conversation
from slime.engines.serving import SERVING_FILE, Serving, read_serving
from slime.errors import ConfigError, OpenClawError, StoreError
from slime.monitor import configure_logging
from slime.store import Changes, Store, is_store
from slime.tools.transfer import adopt, export_sessions

log = logging.getLogger(__name__)

PROG = "python collect_rollouts.py"
_LOOK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def main(argv: Sequence[str] | None = None) -> int:
    """Collect until told to stop; the exit status."""
    parser = argparse.ArgumentParser(prog=PROG, allow_abbrev=False, description="Copy what a server captures.")
    parser.add_argument("--api-endpoint", required=True, metavar="URL", help="of the server, with or without /v1")
    parser.add_argument("--output-dir", required=True, type=Path, metavar="DIR", help="where turns are collected")
    parser.add_argument("--rl-buffer-dir", type=Path, metavar="DIR", help="the server's, if it is not ./rl_buffer")
    parser.add_argument("--session-aware", action="store_true", help="keep turns by session; so in any case")
    given = parser.parse_args(argv)
    config = load_config([], prog=PROG, sections=["server", "output"])
    configure_logging(config.server.log_level)
    try:
        output_dir = output_path("--output-dir", given.output_dir, config.output, os.environ)
        with contextlib.suppress(asyncio.CancelledError):
            buffer_dir = given.rl_buffer_dir or config.server.rl_buffer_dir
            asyncio.run(_collect_until_stopped(given.api_endpoint, buffer_dir, output_dir))
    except OpenClawError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def _collect_until_stopped(api_endpoint: str, buffer_dir: Path, output_dir: Path) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await collect(await find(api_endpoint, buffer_dir), output_dir)


async def find(api_endpoint: str, buffer_dir: Path) -> Serving:
    """The server at an address, as it describes itself beside its captured turns.

    Raises:
        ConfigError: no server answers there, or the turns in `buffer_dir` are another's.
    """
    base = api_endpoint.rstrip("/").removesuffix("/v1")
    timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
            await session.get(f"{base}/healthz")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"--api-endpoint {api_endpoint}: no server of ours answers ({type(error).__name__}); start serve_model.py"
        ) from error
    serving = read_serving(buffer_dir)
    if serving is None or not is_store(Path(serving.rl_buffer_dir)):
        raise ConfigError(
            f"{buffer_dir / SERVING_FILE} is not there: give --rl-buffer-dir as the server has it, on its machine; "
            "a server writes it that was started with --enable-rl-intercept"
        )
    known, asked = urlsplit(serving.api_endpoint), urlsplit(base)
    if asked.hostname in _LOOPBACK and known.port != asked.port:
        raise ConfigError(
            f"--api-endpoint {api_endpoint}: the turns in {buffer_dir} are of the server at {serving.api_endpoint}; "
            "give the --rl-buffer-dir of this one"
        )
    return replace(serving, api_endpoint=base)


async def collect(serving: Serving, output_dir: Path, *, forever: bool = True) -> int:
    """Copy what is stored, and what comes; returns the number of new turns, if it ever returns.

    Args:
        forever: go on looking; without, end when nothing is new.
    """
    async with Store.open(output_dir) as target, Store.open(serving.rl_buffer_dir, appends=False) as source:
        serving.write(output_dir)
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


async def training_settings(rollout_dir: Path) -> tuple[list[str], dict[str, object]]:
    """How a training run is told to work on a directory of rollouts: flags, and settings by path that nobody sees.

    While the server they come from runs, beside it: on its engines, on turns as they are collected. Else offline, on
    what is there: collected turns, or conversation files.
    """
    collected = read_serving(rollout_dir)
    if collected is None:
        return ["--data-path", str(rollout_dir)], {}
    flags = ["--model-path", collected.model_path]
    try:  # its engines may have other addresses than when collecting began
        serving = await find(collected.api_endpoint, Path(collected.rl_buffer_dir))
    except ConfigError as error:
        log.warning("training offline: %s", error)
        return [*flags, "--data-path", str(rollout_dir)], {}
    log.info("training beside server=%s", serving.api_endpoint)
    flags += ["--rl-buffer-dir", str(rollout_dir), "--engine-url", ",".join(serving.engine_urls), "--no-serve"]
    unseen: dict[str, object] = {"engine.engine_token": serving.engine_token}
    if serving.adapter_per:  # what the server asks is what is trained
        unseen |= {"lora.use_lora": True, "lora.adapter_per": serving.adapter_per}
    return flags, unseen
