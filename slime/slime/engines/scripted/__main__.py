"""`python -m slime.engines.scripted --port 30000`: a scripted engine as its own process."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import uvicorn

from slime.engines.dialect.versions import version_from_wire
from slime.engines.door import behind_door
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.faults import Fault
from slime.engines.scripted.script import DEFAULT_REPLIES, Script
from slime.engines.scripted.server import ScriptedApp


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m slime.engines.scripted", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model-path", type=Path, help="take tokenizer and vocabulary from here; else a token a byte")
    parser.add_argument("--weight-version", default="default", help="policy version served from the start")
    parser.add_argument("--reply", action="append", help="a reply; given several times they take turns")
    parser.add_argument("--replies-file", type=Path, help="replies as JSON strings, one a line")
    parser.add_argument("--token-delay-s", type=float, default=0.0)
    parser.add_argument("--first-token-delay-s", type=float, default=0.0)
    parser.add_argument("--max-running-requests", type=int, default=0, help="0: as many as come")
    parser.add_argument("--max-queued-requests", type=int, default=256)
    parser.add_argument("--incremental-streaming-output", action="store_true")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[:TIMES]", help=", ".join(Fault))
    parser.add_argument("--token-from-stdin", action="store_true", help="want the token that is the first line of it")
    return parser.parse_args(arguments)


def build_app(options: argparse.Namespace) -> ScriptedApp:
    """The application the command line asks for; call it where the event loop runs."""
    replies = options.reply or DEFAULT_REPLIES
    if options.replies_file:
        replies = [json.loads(line) for line in options.replies_file.read_text().splitlines()]
    core = ScriptedCore(
        Script(replies, options.model_path),
        model_path=str(options.model_path or ""),
        version=version_from_wire(options.weight_version),
        token_delay_s=options.token_delay_s,
        first_token_delay_s=options.first_token_delay_s,
        max_running_requests=options.max_running_requests,
        max_queued_requests=options.max_queued_requests,
        is_incremental=options.incremental_streaming_output,
    )
    for fault in options.fault:
        name, _, times = fault.partition(":")
        core.faults.plan(Fault(name), int(times or 1))
    return ScriptedApp(core)


async def serve(options: argparse.Namespace) -> None:
    config = uvicorn.Config(
        behind_door(build_app(options), token_from_stdin=options.token_from_stdin),
        host=options.host,
        port=options.port,
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parse_arguments()))
