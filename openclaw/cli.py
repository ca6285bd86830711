"""The console script `openclaw-rl`: interactive tools; each command imports its heavy dependencies on use.

    openclaw-rl demo                                train a tiny model on simulated users
    openclaw-rl tiny-model DIR                      build that model
    openclaw-rl replay-traffic requests.jsonl.gz    feed recorded requests to the capture code
    openclaw-rl new-method my-method                scaffold a method's folder
    openclaw-rl judge calibrate --judge-url URL     measure a judge's agreement with human labels
    openclaw-rl merge-adapter BASE ADAPTER OUT      merge a LoRA adapter into its base model
    openclaw-rl export rl_buffer > talks.jsonl      export conversations, token ids and log-probs included
    openclaw-rl import talks.jsonl rl_buffer        import exported conversations
    openclaw-rl status                              show a run's step, version, and why it is not learning
    openclaw-rl rejudge rl_buffer --judge rule      judge stored turns again with another judge

Start the server with `python -m openclaw.server`, a training run with `python slime/train.py`.
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
    """Train a tiny model on simulated users; takes minutes, without a GPU."""
    from openclaw_test.demo import main as run_demo

    run_demo(context.args)


@app.command("tiny-model")
def tiny_model(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="output directory; an up-to-date model in it is kept")
    ],
    seed: Annotated[int, typer.Option(min=0, help="seed of the weights and the training text")] = 0,
) -> None:
    """Build a small chat model (Qwen3 architecture, about 1M parameters) from generated text."""
    from openclaw_test.tiny.model import build_tiny_model

    print(build_tiny_model(directory, seed=seed))


@app.command("new-method")
def new_method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="lower case with dashes, e.g. my-method")],
    directory: Annotated[Path, typer.Option("--dir", help="parent of the new folder")] = Path(),
) -> None:
    """Scaffold a method: a loss, a rollout, and a script that trains the tiny model with them."""
    from openclaw.new_method import new_method as write

    folder = write(name, directory)
    print(f"bash {folder / ('run_tiny_' + name.replace('-', '_') + '.sh')}")


@app.command("replay-traffic")
def replay_traffic(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="recorded requests: JSON lines, plain or gzip")],
    without_identity: Annotated[
        bool, typer.Option("--without-identity", help="drop every header and field that names a session")
    ] = False,
) -> None:
    """Print where capture places each recorded request: a JSON line with its conversation, kind and parent."""
    from openclaw.replay import replay

    for answer in replay(file, strip_identity=without_identity):
        sys.stdout.write(json.dumps(answer) + "\n")


@app.command("merge-adapter")
def merge_adapter(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="the model that the adapter was trained on")],
    adapter: Annotated[Path, typer.Argument(metavar="ADAPTER", help="the adapter's directory: checkpoint-N/weights")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="directory for the merged model; must not exist")],
) -> None:
    """Merge a LoRA adapter into its base model; writes an ordinary model directory."""
    from slime.weights.adapters import merge_adapter as merge

    if out.exists():
        raise ConfigError(f"{out} already exists; choose a new directory")
    manifest = merge(base, adapter, out)
    print(f"{out}: version {manifest.version}")


@app.command("export")
def export_conversations(
    buffer: Annotated[Path, typer.Argument(metavar="BUFFER", help="directory of --rl-buffer-dir")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="output file; default: stdout")] = None,
    session: Annotated[list[str] | None, typer.Option(metavar="ID", help="only this session; repeatable")] = None,
) -> None:
    """Export stored conversations, complete, as the JSON lines that DATA_PATH reads."""
    from slime.private_files import open_private
    from slime.store import Store
    from slime.tools.transfer import write_sessions

    store = Store.open_existing(buffer)
    with open_private(out, truncate=True) if out else os.fdopen(os.dup(sys.stdout.fileno()), "wb") as file:
        number = asyncio.run(write_sessions(store, session or (), file))
    print(f"{number} conversations written", file=sys.stderr)


@app.command("import")
def import_conversations(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="an exported file, or a directory of them")],
    buffer: Annotated[Path, typer.Argument(metavar="BUFFER", help="directory of --rl-buffer-dir; created if missing")],
) -> None:
    """Import exported conversations; idempotent: turns that are already stored stay unchanged."""
    from slime.tools.transfer import read_sessions

    adopted = asyncio.run(read_sessions(path, buffer))
    print(f"{adopted.stored} turns stored, {adopted.known} already there", file=sys.stderr)


@app.command("status")
def status(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="directory of the run")] = Path("./runs/default"),
) -> None:
    """Print a run's state, updates, version, and the outcome of its samples."""
    from slime.status import describe, read_status

    print(describe(read_status(run_dir)))


class _TakesJudgeFlags(TyperCommand):
    """A command that forwards the judge's flags and lists them in its help."""

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
        Path | None, typer.Option(metavar="FILE", help="prompt for the llm judge; default: the built-in one")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the new verdicts; change nothing")] = False,
) -> None:
    """Judge stored turns again with another judge or prompt."""
    from slime.tools.judges import run_rejudging

    asyncio.run(run_rejudging(buffer, context.args, prompt=prompt, dry_run=dry_run))


judge = typer.Typer(no_args_is_help=True, help="Evaluate judges.", pretty_exceptions_enable=False)
app.add_typer(judge, name="judge")


@judge.command("calibrate", **_HANDS_ON)
def judge_calibrate(
    context: typer.Context,
    labelled: Annotated[
        Path | None, typer.Option("--labelled", metavar="FILE", help="labelled reactions; default: the built-in set")
    ] = None,
) -> None:
    """Measure a judge on labelled reactions: agreement, Cohen's kappa, confusion matrix."""
    import asyncio

    from slime.judging.calibration import LABELLED
    from slime.tools.judges import run_calibration

    asyncio.run(run_calibration(labelled or LABELLED, context.args))


def main() -> None:
    """Entry point: a user error is one line on stderr and exit code 2."""
    # Set before torch is imported: spinning OpenMP threads make two processes on two cores ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
        sys.stdout.flush()
    except OpenClawError as error:
        print(f"openclaw-rl: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # `… | head` closed the pipe; discard what is still buffered
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
