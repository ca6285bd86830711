"""The console script `openclaw-rl`: small things a person types by hand. Imports nothing heavy before it is asked for.

    openclaw-rl demo                                watch a small model learn from the people who talk to it
    openclaw-rl tiny-model DIR                      make that model
    openclaw-rl replay-traffic requests.jsonl.gz    feed recorded requests to the capture code
    openclaw-rl new-method my-method                write a folder to make a method of
    openclaw-rl judge calibrate --judge-url URL     see how well a judge agrees with people
    openclaw-rl merge-adapter BASE ADAPTER OUT      a model directory out of a model and its adapter
    openclaw-rl export rl_buffer > talks.jsonl      conversations out of a buffer, ids and log-probs among them
    openclaw-rl import talks.jsonl rl_buffer        and into one
    openclaw-rl status                              how a run is: its step, its version, and why it learns nothing
    openclaw-rl rejudge rl_buffer --judge rule      what another judge says of what is stored

The server is `python -m openclaw.server`, a training run `python slime/train.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from slime.errors import ConfigError, OpenClawError
from typer.core import TyperCommand

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
    from openclaw_test.tiny.model import build_tiny_model

    print(build_tiny_model(directory, seed=seed))


@app.command("new-method")
def new_method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="in lower case with dashes, like my-method")],
    directory: Annotated[Path, typer.Option("--dir", help="where to make the folder")] = Path(),
) -> None:
    """Write a folder with a loss, a rollout and a script that trains the tiny model with them."""
    from openclaw.new_method import new_method as write

    folder = write(name, directory)
    print(f"bash {folder / ('run_tiny_' + name.replace('-', '_') + '.sh')}")


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


@app.command("merge-adapter")
def merge_adapter(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="the model that the adapter was trained on")],
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="its directory: checkpoint-N/weights")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="where to write the model that both are together")],
) -> None:
    """Merge a LoRA adapter into the model it was trained on; the result is a model directory like any other."""
    from slime.weights.adapters import merge_adapter as merge

    if out.exists():
        raise ConfigError(f"{out}: there is something already; name a directory that is not there yet")
    manifest = merge(base, adapter, out)
    print(f"{out}: version {manifest.version}")


@app.command("export")
def export_conversations(
    buffer: Annotated[Path, typer.Argument(metavar="BUFFER", help="directory of --rl-buffer-dir")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="where to write; stdout when left out")] = None,
    session: Annotated[list[str] | None, typer.Option(metavar="ID", help="only this one; may be repeated")] = None,
) -> None:
    """Write stored conversations as JSON lines, losing nothing of a turn: the format that DATA_PATH reads."""
    from slime.private_files import open_private
    from slime.store import Store
    from slime.tools.transfer import write_sessions

    store = Store.open_existing(buffer)
    with open_private(out, truncate=True) if out else os.fdopen(os.dup(sys.stdout.fileno()), "wb") as file:
        number = asyncio.run(write_sessions(store, session or (), file))
    print(f"{number} conversations written", file=sys.stderr)


@app.command("import")
def import_conversations(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="what export wrote, or a directory of that")],
    buffer: Annotated[Path, typer.Argument(metavar="BUFFER", help="directory of --rl-buffer-dir; made if need be")],
) -> None:
    """Store exported conversations as they were; those that are there already stay as they are."""
    from slime.tools.transfer import read_sessions

    adopted = asyncio.run(read_sessions(path, buffer))
    print(f"{adopted.stored} turns stored, {adopted.known} were there", file=sys.stderr)


@app.command("status")
def status(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="directory of the run")] = Path("./runs/default"),
) -> None:
    """Print what a run says of itself: its state, updates, version, and what became of its samples."""
    from slime.status import describe, read_status

    print(describe(read_status(run_dir)))


class _TakesJudgeFlags(TyperCommand):
    """A command whose help lists the flags of the judge, which it hands on."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from slime.config.loader import flags_help

        super().format_help(ctx, formatter)
        typer.echo("Flags of the judge, as in a training run:\n\n" + flags_help(("judge",)))


_HANDS_ON: dict[str, Any] = {
    "cls": _TakesJudgeFlags,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


@app.command("rejudge", **_HANDS_ON)
def rejudge(
    context: typer.Context,
    buffer: Annotated[Path, typer.Argument(metavar="BUFFER", help="directory of --rl-buffer-dir")],
    prompt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="instructions for the llm judge, in place of ours")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what another judge says; change nothing")] = False,
) -> None:
    """Have stored turns judged again by another judge or prompt."""
    from slime.tools.judges import run_rejudging

    asyncio.run(run_rejudging(buffer, context.args, prompt=prompt, dry_run=dry_run))


judge = typer.Typer(no_args_is_help=True, help="Look at judges.", pretty_exceptions_enable=False)
app.add_typer(judge, name="judge")


@judge.command("calibrate", **_HANDS_ON)
def judge_calibrate(
    context: typer.Context,
    labelled: Annotated[
        Path | None, typer.Option("--labelled", metavar="FILE", help="labelled reactions; the set that ships if none")
    ] = None,
) -> None:
    """Have a judge judge labelled reactions: agreement, kappa, confusion."""
    import asyncio

    from slime.judging.calibration import LABELLED
    from slime.tools.judges import run_calibration

    asyncio.run(run_calibration(labelled or LABELLED, context.args))


def main() -> None:
    """Entry point: a mistake of the user's is one line on stderr and exit code 2."""
    # Before torch is there: threads that spin while they wait make two processes on two cores ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
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
