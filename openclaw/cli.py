"""The console script `openclaw-rl`: small things a person types by hand. Imports nothing heavy before it is asked for.

    openclaw-rl demo                                watch a small model learn from the people who talk to it
    openclaw-rl tiny-model DIR                      make that model
    openclaw-rl replay-traffic requests.jsonl.gz    feed recorded requests to the capture code

The server is `python -m openclaw.server`, a training run `python slime/train.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from slime.errors import OpenClawError

app = typer.Typer(
    name="openclaw-rl",
    help="Train an agent by using it. The server is `python -m openclaw.server`, training `python slime/train.py`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command("demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def demo(context: typer.Context) -> None:
    """Simulated people talk to a tiny model until it does what they like; no GPU, minutes."""
    from openclaw_test.demo import main as run_demo

    run_demo(context.args)


@app.command("tiny-model")
def tiny_model(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="where to write it; an up-to-date one is left alone")
    ],
    seed: Annotated[int, typer.Option(min=0, help="seed of its weights and its training text")] = 0,
) -> None:
    """Make a small chat model (Qwen3 architecture, about 1M parameters) from text generated here."""
    from openclaw_test.tiny_model import build_tiny_model

    print(build_tiny_model(directory, seed=seed))


@app.command("replay-traffic")
def replay_traffic(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="recorded requests: JSON lines, plain or gzip")],
    without_identity: Annotated[
        bool, typer.Option("--without-identity", help="leave out every header and field that names a session")
    ] = False,
) -> None:
    """Print where the capture code puts each recorded request: a JSON line with its conversation, kind and parent."""
    from openclaw.replay import replay

    for answer in replay(file, strip_identity=without_identity):
        sys.stdout.write(json.dumps(answer) + "\n")


def main() -> None:
    """Entry point: a mistake of the user's is one line on stderr and exit code 2."""
    try:
        app()
        sys.stdout.flush()
    except OpenClawError as error:
        print(f"openclaw-rl: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # `… | head` has seen enough; what is still buffered has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
