"""`python -m slime.engines.embedded --model-path DIR --port P`: the embedded engine as a server process."""

from __future__ import annotations

import argparse
import logging
import sys

import torch
import uvicorn

from slime.engines.dialect.versions import FIRST_VERSION, version_from_wire
from slime.engines.door import behind_door
from slime.engines.embedded.service import EngineOptions, EngineService
from slime.engines.http import EngineApp
from slime.errors import OpenClawError


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; 2 if the engine cannot be set up."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if args.num_threads:
        torch.set_num_threads(args.num_threads)
    options = EngineOptions(
        model_path=args.model_path,
        device=args.device,
        dtype=args.dtype,
        max_running_requests=args.max_running_requests,
        max_queued_requests=args.max_queued_requests,
        max_context_len=args.context_length,
        kv_cache_bytes=args.kv_cache_bytes,
        num_cached_sessions=args.num_cached_sessions,
        policy_version=version_from_wire(args.weight_version) or None,
        is_incremental=args.incremental_streaming_output,
        adapters=dict(_named_path(item) for item in args.lora_paths),
    )
    try:
        service = EngineService(options)
    except (OpenClawError, ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    uvicorn.run(
        behind_door(EngineApp(service), token_from_stdin=args.token_from_stdin),
        host=args.host,
        port=args.port,
        log_level=args.log_level,
        access_log=False,
        timeout_graceful_shutdown=10,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = EngineOptions("")
    parser = argparse.ArgumentParser("slime.engines.embedded", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--model-path", required=True, help="Hugging Face model directory")
    add("--host", default="127.0.0.1", help="address to bind")
    add("--port", type=int, default=30000, help="port to bind")
    add("--device", default=defaults.device, help="cpu, cuda, cuda:1; auto: cuda where there is one")
    add("--dtype", default=defaults.dtype, choices=("auto", "float32", "bfloat16", "float16"))
    add("--max-running-requests", type=int, default=defaults.max_running_requests, help="sequences decoded together")
    add("--max-queued-requests", type=int, default=defaults.max_queued_requests, help="more than these are refused")
    add("--context-length", type=int, default=0, help="longest prompt plus reply; 0 = the model's own limit")
    add("--kv-cache-bytes", type=int, default=0, help="memory for keys and values; 0 = by device")
    add("--num-cached-sessions", type=int, default=defaults.num_cached_sessions, help="finished sequences kept")
    add(
        "--weight-version",
        default=FIRST_VERSION,
        help="policy version of the weights given; default: the manifest's, else 0",
    )
    add("--lora-paths", nargs="*", default=[], metavar="NAME=DIR", help="adapters to begin with; more can be loaded")
    add("--incremental-streaming-output", action="store_true", help="streams say only what is new")
    add("--token-from-stdin", action="store_true", help="want the token that is the first line of it")
    add("--num-threads", type=int, default=0, help="threads that one operation may use; 0 = torch's default")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _named_path(item: str) -> tuple[str, str]:
    """`ada@7=/run/checkpoint-7/weights` → its parts."""
    name, _, path = item.partition("=")
    return name, path


if __name__ == "__main__":
    sys.exit(main())
