"""Compare methods and baselines: satisfaction learned, sessions needed, and accuracy lost.

    python -m openclaw_test.compare --model-dir runs/tiny-model --arms all --seeds 5

    every arm × every seed ─┬ baseline ─▶ engine and server on the model as it is ─▶ trial ─┐
                            └ method ─▶ slime/train.py ─▶ trial in step with the trainer ───┴─▶ results/ARM-SEED.json
    all results ─▶ report.json, table.txt, curves.png

Under one seed, every arm gets the same users and problems. Finished results are kept: the same command resumes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from openclaw_test.checkpoints import weights_dir, whole_model
from openclaw_test.evaluate import add_conversation_flags, plan_of, run_program, scale_for, unasked_conversations
from openclaw_test.lockstep import LockStep
from openclaw_test.methods import Baseline, Method, baselines, chosen_arms
from openclaw_test.people.assistants import Assistant, ServedAssistant
from openclaw_test.people.model_user import user_factory
from openclaw_test.people.personas import Scale
from openclaw_test.people.sessions import Session
from openclaw_test.report.divergence import kl_to, sample_scored
from openclaw_test.report.eval_view import write_report
from openclaw_test.serving import running_engine, serve_model
from openclaw_test.suites.held_out import HeldOut
from openclaw_test.suites.scoring import SeedResult
from openclaw_test.training_run import TrainingRun
from openclaw_test.trial import Plan, UserFactory, run_trial
from rich.console import Console
from slime.config.sections import EngineConfig
from slime.errors import ConfigError
from slime.store import Store
from slime.weights.adapters import fingerprint

_FORMAT = 2


@dataclass(frozen=True)
class Comparison:
    """The settings shared by all arms."""

    model_dir: Path
    output_dir: Path
    plan: Plan
    scale: Scale
    temperature: float
    seeds: tuple[int, ...]
    updates: int
    batch_size: int
    train_flags: tuple[str, ...]
    user_model: str = ""

    def assistant(self, client: AsyncOpenAI, model: str, *, is_captured: bool) -> ServedAssistant:
        """The model behind `client`."""
        return ServedAssistant(
            client,
            model,
            max_tokens=self.scale.max_tokens,
            temperature=self.temperature,
            is_captured=is_captured,
        )

    def mark(self, method: Method | None) -> dict[str, Any]:
        """The settings that a kept result must match; training settings do not affect a baseline."""
        plan = self.plan
        flags = method and [*method.flags(), *self.train_flags]
        return {
            "format": _FORMAT,
            "weights": fingerprint(self.model_dir),  # a model built anew in its place is another
            "who": [[persona.name for persona in phase] for phase in plan.phases],
            "counts": [plan.num_sessions, plan.num_questions, plan.num_users],
            "users": self.user_model,
            "replies": [self.scale.min_tokens, self.scale.max_tokens, self.temperature],
            "trained": flags and [flags, self.updates, self.batch_size],
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: compare the selected arms."""
    run_program("compare", _parse, _run, arguments)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "openclaw_test.compare", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--model-dir", required=True, help="the initial model of every arm")
    parser.add_argument("--arms", default="all", help="methods and baselines, comma-separated, or all")
    parser.add_argument("--method-dir", nargs="*", default=[], help="further methods: folders with loss and rollout")
    add_conversation_flags(parser)
    parser.add_argument("--updates", type=int, default=40, help="maximum number of updates")
    parser.add_argument("--batch-size", type=int, default=4, help="effective samples per update")
    parser.add_argument("--best-of", type=int, default=4, help="replies sampled by best-of-n")
    parser.add_argument("--train-flags", default="", help="further flags of slime/train.py for every method")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/compare"), help="results, table and curves")
    parser.set_defaults(sessions=240, seeds=5)
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace) -> None:
    model_dir = weights_dir(options.model_dir)
    scale = scale_for(options, str(model_dir))
    if min(options.updates, options.batch_size, options.best_of) < 1:
        raise ConfigError("--updates, --batch-size and --best-of must be at least 1")
    still, methods = chosen_arms(options.arms, baselines(options.best_of), options.method_dir)
    async with user_factory(options) as make_user:
        comparison = _comparison(options, model_dir, scale, make_user)
        by_arm = await compare(comparison, still, methods)
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    rows = [row for arm, results in by_arm.items() for row in comparison.plan.rows(arm, results)]
    write_report(comparison.output_dir, shown | dataclasses.asdict(scale), rows, {})


def _comparison(options: argparse.Namespace, model_dir: Path, scale: Scale, make_user: UserFactory) -> Comparison:
    return Comparison(
        model_dir=model_dir,
        output_dir=options.output_dir.resolve(),
        plan=plan_of(options, scale, make_user),
        scale=scale,
        temperature=options.temperature,
        seeds=tuple(range(options.seed, options.seed + options.seeds)),
        updates=options.updates,
        batch_size=options.batch_size,
        train_flags=tuple(options.train_flags.split()),
        user_model=options.user_model,
    )


async def compare(
    comparison: Comparison, still: Mapping[str, Baseline], methods: Mapping[str, Method]
) -> dict[str, list[SeedResult]]:
    """Run every arm with every seed in sequence; finished results are read from disk."""
    console = Console(stderr=True)
    done: dict[str, list[SeedResult]] = {}
    for arm in (*still, *methods):
        done[arm] = []
        for seed in comparison.seeds:
            file = comparison.output_dir / "results" / f"{arm}-{seed}.json"
            mark = comparison.mark(methods.get(arm))
            result = _kept(file, mark)
            if result is None:
                console.print(f"{arm}, seed {seed} …")
                run = _try_still(comparison, still[arm], seed) if arm in still else None
                result = await (run or _train(comparison, methods[arm], seed))
                _keep(file, mark, result)
            done[arm].append(result)
    return done


async def _try_still(comparison: Comparison, baseline: Baseline, seed: int) -> SeedResult:
    """Run a baseline: the model is not trained."""
    log_dir = comparison.output_dir / "logs" / "baselines"
    async with serve_model(comparison.model_dir, log_dir, EngineConfig()) as served:
        inner = comparison.assistant(served.client, served.model, is_captured=False)
        result = await run_trial(comparison.plan, lambda users: baseline(inner, users), seed)
    return dataclasses.replace(result, kl=0.0)  # it is the base model


async def _train(comparison: Comparison, method: Method, seed: int) -> SeedResult:
    """Run a method: the model trains on the sessions, in lock-step with them."""
    run_dir = comparison.output_dir / "runs" / f"{method.name}-{seed}"
    if run_dir.exists():  # left by an interrupted comparison; sessions cannot be resumed midway
        shutil.rmtree(run_dir)
    flags = [
        *method.flags(),
        *("--rollout-batch-size", str(comparison.batch_size), "--num-rollout", str(comparison.updates)),
        *("--seed", str(seed), *comparison.train_flags),
    ]
    updates = comparison.updates - comparison.updates // 2 if comparison.plan.drift else comparison.updates
    async with (
        TrainingRun(comparison.model_dir, run_dir, flags) as run,
        AsyncOpenAI(base_url=run.base_url, api_key="local", max_retries=5) as client,
        Store.open(run.buffer_dir, appends=False) as store,
    ):
        name = (await client.models.list()).data[0].id
        captured: Assistant = comparison.assistant(client, name, is_captured=True)
        result = await run_trial(
            comparison.plan,
            lambda _: captured,
            seed,
            pace=lambda: LockStep(
                run,
                store,
                comparison.batch_size,
                updates=updates,
                of_run=comparison.updates,
                is_per_user="--adapter-per user" in " ".join(flags),
            ),
            probe=comparison.assistant(client, name, is_captured=False),
        )
        num_updates = run.step
    kl = await _kl(comparison, run_dir, seed) if num_updates else 0.0
    return dataclasses.replace(result, kl=kl, num_updates=num_updates)


async def _kl(comparison: Comparison, run_dir: Path, seed: int) -> float | None:
    """KL of the trained weights to the initial model; None with one adapter per user."""
    newest = run_dir / "checkpoints" / "checkpoint-latest"
    try:
        trained = whole_model(newest, comparison.model_dir, run_dir / "merged")
    except ConfigError:
        return None
    logs, asked = run_dir / "logs", unasked_conversations(comparison.plan, seed)
    max_tokens = comparison.scale.max_tokens
    async with running_engine(trained, logs / "trained-engine.log", EngineConfig()) as engine:
        scored = await sample_scored(engine, trained, asked, max_tokens=max_tokens, seed=seed)
    async with running_engine(comparison.model_dir, logs / "base-engine.log", EngineConfig()) as engine:
        return await kl_to(engine, scored)


def _keep(file: Path, mark: Mapping[str, Any], result: SeedResult) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"mark": mark, **dataclasses.asdict(result)}, indent=1), encoding="utf-8")
    partial.replace(file)


def _kept(file: Path, mark: Mapping[str, Any]) -> SeedResult | None:
    """The stored result, if its settings match."""
    if not file.exists():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept.pop("mark") != mark:
        return None
    kept["sessions"] = [Session(**session) for session in kept["sessions"]]
    kept["held_out"] = {name: HeldOut(**held) for name, held in kept["held_out"].items()}
    return SeedResult(**kept)


if __name__ == "__main__":
    main(sys.argv[1:])
