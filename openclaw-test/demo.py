"""Train a tiny model on simulated users with a hidden preference, and show it learning: `make demo`.

    tiny model ─▶ training run (engine, server, trainer) ─▶ score before ─▶ people talk, weights change ─▶ score after
                                                                                 │
                              live: conversations, verdicts, step, score, version ┘      summary.json, curves.png, table

After Ctrl-C, or a kill of any process, the same command resumes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openclaw_test.people.assistants import ServedAssistant, StreamedAssistant
from openclaw_test.people.personas import PLAIN, TINY
from openclaw_test.people.sessions import Crowd, Exchange
from openclaw_test.people.styles import RULES
from openclaw_test.people.users import Person
from openclaw_test.report.demo_view import DemoView, draw_curves, print_summary
from openclaw_test.suites.held_out import held_out
from openclaw_test.tiny.model import build_tiny_model
from openclaw_test.training_run import TrainingRun
from rich.console import Console
from slime.errors import ConfigError
from slime.monitor import configure_logging
from slime.store import Store
from slime.types import Turn, Verdict

RECIPE = (
    *("--rollout-batch-size", "16", "--max-staleness", "4", "--queue-capacity", "64"),
    *("--lr", "5e-4", "--weight-decay", "0", "--kl-loss-coef", "0.1", "--kl-loss-type", "full"),
    *("--baseline", "ema", "--judge", "rule", "--num-judge-workers", "8"),
    *("--save-interval", "1", "--keep-checkpoints", "3", "--keep-serving"),
)
"""Flags of `slime/train.py` for a model of a million parameters; openclaw-test/README.md explains them."""

NAMES = ("Ada", "Bo", "Cleo", "Dan")
RULE = "plain"
_REFRESH_S = 0.25


@dataclass
class Progress:
    """The demo's state, kept across restarts in `demo.json`."""

    satisfaction_before: dict[str, float] = field(default_factory=dict)
    accuracy_before: float = -1.0
    requests: int = 0
    requests_failed: int = 0
    talk_seconds: float = 0.0
    sessions_seed: int = 0
    first_replies: list[list[float]] = field(default_factory=list)
    """[updates made, 1 if satisfied, 1 if right] of each first reply, before any mention of style."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo; exits with 0 when complete, 130 after Ctrl-C."""
    options = _parse(arguments)
    configure_logging("warning", options.run_dir / "logs" / "demo.log")
    try:
        asyncio.run(_demo(options))
    except KeyboardInterrupt:
        Console().print("\nStopped. Run the same command to resume; [bold]--fresh[/bold] starts over.")
        raise SystemExit(130) from None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("openclaw-rl demo", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/demo"), help="output directory")
    parser.add_argument(
        "--model-dir", type=Path, default=Path("runs/tiny-model"), help="the tiny model; built if missing"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulated users and the trainer")
    parser.add_argument("--updates", type=int, default=24, help="updates to make, of 16 effective samples each")
    parser.add_argument("--questions", type=int, default=200, help="held-out problems per score")
    parser.add_argument("--fresh", action="store_true", help="delete an earlier run's files and start over")
    options = parser.parse_args(arguments)
    options.run_dir = options.run_dir.resolve()
    if options.fresh and options.run_dir.exists():
        if not (options.run_dir / "demo.json").exists():
            raise ConfigError(f"--fresh: {options.run_dir} is not a demo's directory, so it is not deleted")
        shutil.rmtree(options.run_dir)
    options.run_dir.mkdir(parents=True, exist_ok=True)
    return options


async def _demo(options: argparse.Namespace) -> None:
    began = time.monotonic()
    run_dir: Path = options.run_dir
    model_dir = build_tiny_model(options.model_dir)
    progress = _load(run_dir)
    earlier_seconds = progress.talk_seconds
    flags = [*RECIPE, "--num-rollout", str(options.updates), "--seed", str(options.seed)]
    console = Console()
    console.print("Starting the engine, the server and the trainer …")
    async with (
        TrainingRun(model_dir, run_dir, flags) as run,
        AsyncOpenAI(base_url=run.base_url, api_key="local", max_retries=5) as client,
    ):
        name = (await client.models.list()).data[0].id
        if progress.accuracy_before < 0:
            console.print(f"Scoring the untrained model on {options.questions} held-out problems …")
            progress.satisfaction_before, progress.accuracy_before = await _score(client, name, options.questions)
            _save(run_dir, progress)
        await _talk(options, run, client, name, progress)
        console.print("Scoring the trained model …")
        satisfaction, accuracy = await _score(client, name, options.questions)
    summary = _summary(options, run, progress, satisfaction, accuracy)
    summary["seconds"] = round(earlier_seconds + time.monotonic() - began, 1)
    (run_dir / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    draw_curves(run_dir / "curves.png", progress.first_replies, run.metrics())
    print_summary(console, summary, run_dir)


async def _score(client: AsyncOpenAI, name: str, num_questions: int) -> tuple[dict[str, float], float]:
    """Share of held-out replies that keep each rule, and share with the right answer; not captured."""
    assistant = ServedAssistant(client, name, max_tokens=TINY.max_tokens, has_user_keys=False)
    rules = {rule: lambda reply, keeps=keeps: keeps(reply.text) for rule, keeps in RULES.items()}
    found = await held_out(assistant, Person("held out", PLAIN, seed=1), num_questions, 1, rules)
    return {rule: kept / found.num for rule, kept in found.num_kept_of.items()}, found.num_right / found.num


async def _talk(
    options: argparse.Namespace, run: TrainingRun, client: AsyncOpenAI, name: str, progress: Progress
) -> None:
    """Run the users until the updates are made, counting and showing every exchange."""
    progress.sessions_seed += 1
    seed = 1000 * options.seed + progress.sessions_seed
    # No retries: every failed request is counted.
    assistant = StreamedAssistant(client.with_options(max_retries=0), name, max_tokens=TINY.max_tokens)
    crowd = Crowd([Person(who, PLAIN, seed) for who in NAMES], assistant)
    view = DemoView(options.updates)

    def watch(exchange: Exchange) -> None:
        progress.requests += 1
        progress.requests_failed += bool(exchange.error)
        if exchange.attempt == 0 and exchange.is_kept is not None:
            row = [float(run.step), float(exchange.is_kept), float(bool(exchange.is_right))]
            progress.first_replies.append(row)
        view.exchange(exchange)

    began = time.monotonic()
    async with Store.open(run.buffer_dir, appends=False) as store:
        with view:
            talking = asyncio.create_task(crowd.talk(watch))
            try:
                while run.step < options.updates:
                    run.check()
                    if talking.done():
                        talking.result()
                    view.update(run.metrics(), progress.first_replies, await _judged(store))
                    await asyncio.sleep(_REFRESH_S)
                crowd.stop()
                await talking
            finally:
                talking.cancel()
                await asyncio.gather(talking, return_exceptions=True)
                progress.talk_seconds += time.monotonic() - began
                _save(run.run_dir, progress)
                view.update(run.metrics(), progress.first_replies, [])


async def _judged(store: Store) -> list[tuple[Turn, Verdict]]:
    """The newest turns that have a verdict."""
    turns = await store.recent(12)
    verdicts = [(turn, await store.verdict(turn.turn_id)) for turn in turns]
    return [(turn, verdict) for turn, verdict in verdicts if verdict is not None]


def _summary(
    options: argparse.Namespace, run: TrainingRun, progress: Progress, satisfaction: dict[str, float], accuracy: float
) -> dict[str, Any]:
    metrics = run.metrics()
    return {
        "satisfaction_before": progress.satisfaction_before[RULE],
        "satisfaction_after": satisfaction[RULE],
        "accuracy_before": progress.accuracy_before,
        "accuracy_after": accuracy,
        "preferences": {
            rule: {"before": before, "after": satisfaction[rule]}
            for rule, before in progress.satisfaction_before.items()
        },
        "steps": int(metrics[-1]["step"]),
        "samples": int(sum(entry["train/samples"] for entry in metrics)),
        "kl": statistics.fmean(entry.get("loss/kl", 0.0) for entry in metrics[-3:]),
        "requests": progress.requests,
        "requests_failed": progress.requests_failed,
        "restarts": run.num_restarts,
        "held_out_questions": options.questions,
        "seed": options.seed,
    }


def _load(run_dir: Path) -> Progress:
    file = run_dir / "demo.json"
    return Progress(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else Progress()


def _save(run_dir: Path, progress: Progress) -> None:
    partial = run_dir / ".demo.json.partial"
    partial.write_text(json.dumps(asdict(progress)), encoding="utf-8")
    partial.replace(run_dir / "demo.json")


if __name__ == "__main__":
    main(sys.argv[1:])
