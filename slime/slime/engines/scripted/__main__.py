"""`python -m slime.engines.scripted --port 30000`: the scripted engine as a server process."""

from __future__ import annotations

import json
from pathlib import Path

from slime.engines.door import engine_parser, listen
from slime.engines.scripted.core import ScriptedCore
from slime.engines.scripted.faults import Fault
from slime.engines.scripted.script import DEFAULT_REPLIES, Script
from slime.engines.scripted.server import ScriptedApp


def main() -> None:
    """Serve until told to stop."""
    parser = engine_parser("python -m slime.engines.scripted", __doc__)
    add = parser.add_argument
    add("--model-path", default="", help="take tokenizer and vocabulary from here; else a byte is a token")
    add("--reply", action="append", help="a reply; given several times they take turns")
    add("--replies-file", type=Path, help="replies as JSON strings, one a line")
    add("--token-delay-s", type=float, default=0.0)
    add("--first-token-delay-s", type=float, default=0.0)
    add("--fault", action="append", default=[], metavar="NAME[:TIMES]", help=", ".join(Fault))
    args = parser.parse_args()
    replies = args.reply or DEFAULT_REPLIES
    if args.replies_file:
        replies = [json.loads(line) for line in args.replies_file.read_text().splitlines()]
    core = ScriptedCore(
        Script(replies, Path(args.model_path) if args.model_path else None),
        model_path=args.model_path,
        version=args.weight_version,
        token_delay_s=args.token_delay_s,
        first_token_delay_s=args.first_token_delay_s,
        max_running_requests=args.max_running_requests,
        max_queued_requests=args.max_queued_requests,
        is_incremental=args.incremental_streaming_output,
    )
    for fault in args.fault:
        name, _, times = fault.partition(":")
        core.faults.plan(Fault(name), int(times or 1))
    listen(ScriptedApp(core), args, log_level="error", grace_s=1)


if __name__ == "__main__":
    main()
