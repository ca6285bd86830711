"""`python -m slime.engines.embedded --model-path DIR --port P`: the embedded engine as a server process."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from dataclasses import fields

import torch

from slime.engines.door import engine_parser, listen
from slime.engines.embedded.service import EngineOptions, EngineService
from slime.engines.http import EngineApp
from slime.errors import OpenClawError


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; 2 if the engine cannot be set up."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if args.num_threads:
        torch.set_num_threads(args.num_threads)
    options = EngineOptions(**{field.name: getattr(args, field.name) for field in fields(EngineOptions)})
    try:
        service = EngineService(options)
    except (OpenClawError, ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    listen(EngineApp(service), args, log_level=args.log_level, grace_s=10)
    return 0


def _parser() -> ArgumentParser:
    defaults = EngineOptions("")
    parser = engine_parser("python -m slime.engines.embedded", __doc__)
    parser.set_defaults(max_running_requests=defaults.max_running_requests)
    add = parser.add_argument
    add("--model-path", required=True, help="Hugging Face model directory")
    add("--device", default=defaults.device, help="cpu, cuda, cuda:1; auto: cuda where there is one")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    add("--dtype", default=defaults.dtype, choices=dtypes, help="auto: float32 on a CPU, else the checkpoint's")
    add("--context-length", type=int, default=0, help="longest prompt plus reply; 0 = the model's own limit")
    add("--kv-cache-bytes", type=int, default=0, help="of keys and values; 0 = 4 GiB on a CPU, half of a GPU's free")
    add("--num-cached-sessions", type=int, default=defaults.num_cached_sessions, help="finished sequences kept")
    named = "adapters to begin with; more can be loaded"
    add("--lora-paths", nargs="*", default=(), type=_named_path, metavar="NAME=DIR", help=named)
    add("--num-threads", type=int, default=0, help="threads that one operation may use; 0 = torch's default")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _named_path(item: str) -> tuple[str, str]:
    """`ada@7=/run/checkpoint-7/weights` → its parts."""
    name, _, path = item.partition("=")
    return name, path


if __name__ == "__main__":
    sys.exit(main())
