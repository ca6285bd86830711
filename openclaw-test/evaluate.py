"""Evaluate checkpoints: satisfaction of users with hidden preferences, accuracy, and KL to the base model.

    python -m openclaw_test.evaluate --model-path CKPT --eval-tasks "conversation,coding,tool-use" --persona all

    each model ─▶ engine and server ─▶ for every seed: sessions, held-out problems, KL to the base ─┐
                                  └─▶ suites with exact checks ─────────────────────────────────────┴─▶ JSON, table, PNG

Results are deterministic per seed if the engine honours request seeds, as the embedded one does.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAIError
from openclaw_test.checkpoints import weights_dir, whole_model
from openclaw_test.people.assistants import ServedAssistant
from openclaw_test.people.model_user import user_factory
from openclaw_test.people.personas import Scale, chosen, personas, scale_of
from openclaw_test.people.problems import random_problem
from openclaw_test.people.users import ScriptedUser
from openclaw_test.report.divergence import kl_to, sample_scored
from openclaw_test.report.eval_view import write_report
from openclaw_test.serving import Served, attached, running_engine, serve_model
from openclaw_test.suites.scoring import PersonaScore, SeedResult
from openclaw_test.suites.suites import SUITES, SuiteScore, run_suite
from openclaw_test.trial import Plan, UserFactory, drifts, run_trial
from rich.console import Console
from slime.config.sections import EngineConfig
from slime.errors import ConfigError, OpenClawError, nearest
from slime.monitor import configure_logging
from slime.types import Message

TASKS = ("conversation", *SUITES)
NUM_DIVERGENCE = 60
"""Replies per seed from whose tokens the KL to the base model is estimated."""


@dataclass(frozen=True)
class Settings:
    """The settings shared by all models, as in the flags of the same names."""

    plan: Plan
    tasks: tuple[str, ...]
    scale: Scale
    temperature: float
    seeds: tuple[int, ...]
    num_tasks: int


@dataclass(frozen=True)
class Model:
    """A model to evaluate: its name in the table, and its directory."""

    name: str
    directory: Path


@dataclass
class Evaluated:
    """The results of one model."""

    name: str
    plan: Plan
    results: list[SeedResult]
    suites: list[SuiteScore]

    @property
    def rows(self) -> list[PersonaScore]:
        """The model's rows of the table."""
        return self.plan.rows(self.name, self.results) if self.results else []


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: evaluate the selected models."""
    run_program("evaluate", _parse, _run, arguments)


def run_program(
    name: str,
    parse: Callable[[Sequence[str] | None], argparse.Namespace],
    run: Callable[[argparse.Namespace], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None,
) -> None:
    """Run a program with an --output-dir; an error is one line on stderr, with exit code 2 for user errors."""
    try:
        options = parse(arguments)
        configure_logging("warning", options.output_dir / "logs" / f"{name}.log")
        asyncio.run(run(options))
    except (OpenClawError, OpenAIError) as error:
        print(f"openclaw_test.{name}: error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ConfigError) else 1) from None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "openclaw_test.evaluate", description=(__doc__ or "").splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--model-path", nargs="+", default=[], help="checkpoints or model directories, to be ranked")
    parser.add_argument(
        "--base-url", default="", help="evaluate a running server instead, e.g. http://127.0.0.1:8000/v1"
    )
    parser.add_argument("--base-model", default="", help="base model: for the KL, and to merge adapters")
    parser.add_argument("--eval-tasks", default="conversation", help="comma-separated: " + ", ".join(TASKS))
    add_conversation_flags(parser)
    parser.add_argument("--tasks", type=int, default=21, help="tasks per suite")
    parser.add_argument("--backend", choices=("embedded", "sglang", "scripted"), default="embedded")
    parser.add_argument("--sglang-python", default="", help="Python of the environment that has SGLang")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/eval"), help="report.json, table.txt, curves.png")
    options = parser.parse_args(arguments)
    if bool(options.model_path) == bool(options.base_url):
        raise ConfigError("give either --model-path or --base-url")
    options.output_dir = options.output_dir.resolve()
    return options


def add_conversation_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the simulated users, their sessions and the sampling."""
    parser.add_argument("--persona", default="all", help="student, ta, teacher, several comma-separated, or all")
    parser.add_argument("--drift", action="store_true", help="half-way, switch every user to the next persona's rule")
    parser.add_argument("--sessions", type=int, default=40, help="sessions per user")
    parser.add_argument("--users", type=int, default=1, help="users per persona")
    parser.add_argument("--questions", type=int, default=100, help="held-out problems per persona")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=3, help="number of consecutive seeds")
    parser.add_argument("--min-tokens", type=int, default=0, help="minimum reply of a ta; 0: 100, tiny model: 34")
    parser.add_argument("--max-tokens", type=int, default=0, help="token limit of a reply; 0: 512, tiny model: 64")
    parser.add_argument("--user-model-url", default="", help="OpenAI-compatible server of a model that plays the users")
    parser.add_argument("--user-model", default="", help="that model's name; its key is OPENAI_API_KEY")
    parser.add_argument("--temperature", type=float, default=1.0, help="sampling temperature of replies")


def plan_of(options: argparse.Namespace, scale: Scale, make_user: UserFactory) -> Plan:
    """The plan that the conversation flags describe."""
    for name in ("sessions", "users", "questions", "seeds"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} must be at least 1")
    who = tuple(chosen(options.persona, scale.min_tokens))
    if options.drift and options.sessions < 2:
        raise ConfigError("--drift needs --sessions 2 or more")
    drift = drifts(who, list(personas(scale.min_tokens).values())) if options.drift else ()
    return Plan(who, options.sessions, options.questions, drift, options.users, make_user)


def scale_for(options: argparse.Namespace, model_dir: str) -> Scale:
    """The model's scale, overridden by the flags."""
    scale = scale_of(model_dir)
    return Scale(options.min_tokens or scale.min_tokens, options.max_tokens or scale.max_tokens)


def _settings(options: argparse.Namespace, model_dir: str, make_user: UserFactory) -> Settings:
    tasks = tuple(part.strip() for part in options.eval_tasks.split(",") if part.strip())
    for task in tasks:
        if task not in TASKS:
            raise ConfigError(f"--eval-tasks: unknown {task!r}; choose from {', '.join(TASKS)}{nearest(task, TASKS)}")
    if options.tasks < 1:
        raise ConfigError("--tasks must be at least 1")
    scale = scale_for(options, model_dir)
    seeds = tuple(range(options.seed, options.seed + max(1, options.seeds)))
    return Settings(plan_of(options, scale, make_user), tasks, scale, options.temperature, seeds, options.tasks)


async def _run(options: argparse.Namespace) -> None:
    base = weights_dir(options.base_model) if options.base_model else None
    models = [
        Model(label(given, options.model_path), whole_model(given, base, options.output_dir / "merged" / str(number)))
        for number, given in enumerate(options.model_path)
    ]
    async with user_factory(options) as make_user:
        settings = _settings(options, str(models[0].directory) if models else "", make_user)
        done = await _evaluate_all(options, settings, models, base)
    shown = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
    write_report(
        options.output_dir,
        shown | dataclasses.asdict(settings.scale),
        [row for evaluated in done for row in evaluated.rows],
        {evaluated.name: evaluated.suites for evaluated in done if evaluated.suites},
    )


async def _evaluate_all(
    options: argparse.Namespace, settings: Settings, models: Sequence[Model], base: Path | None
) -> list[Evaluated]:
    console = Console(stderr=True)
    done: list[Evaluated] = []
    if options.base_url:
        async with attached(options.base_url) as served:
            done.append(await evaluate_served(served, served.model, settings))
    for model in models:
        console.print(f"Evaluating {model.name} …")
        engine = EngineConfig(sglang_python=options.sglang_python)
        log_dir = options.output_dir / "logs" / str(len(done))
        done.append(await evaluate_model(model, settings, engine, log_dir, base=base, backend=options.backend))
    return done


def label(given: str, others: Sequence[str]) -> str:
    """The shortest suffix of a path that distinguishes it from the others."""
    parts = Path(given).parts
    for length in range(1, len(parts)):
        end = parts[-length:]
        if sum(Path(other).parts[-length:] == end for other in others) == 1:
            return "/".join(end)
    return given


async def evaluate_model(
    model: Model,
    settings: Settings,
    engine: EngineConfig,
    log_dir: Path,
    *,
    base: Path | None = None,
    backend: str = "",
) -> Evaluated:
    """Serve and evaluate a model. Raises EngineUnavailable when it cannot be served."""
    async with serve_model(model.directory, log_dir, engine, backend) as served:
        evaluated = await evaluate_served(served, model.name, settings)
        if base is not None and evaluated.results:
            assert served.engine is not None
            max_tokens = settings.scale.max_tokens
            scored = [
                await sample_scored(
                    served.engine,
                    model.directory,
                    unasked_conversations(settings.plan, seed),
                    max_tokens=max_tokens,
                    seed=seed,
                )
                for seed in settings.seeds
            ]
    if base is not None and evaluated.results:
        async with running_engine(base, log_dir / "base-engine.log", engine, backend) as base_engine:
            kls = [await kl_to(base_engine, replies) for replies in scored]
        evaluated.results = [
            dataclasses.replace(result, kl=kl) for result, kl in zip(evaluated.results, kls, strict=True)
        ]
    return evaluated


async def evaluate_served(served: Served, name: str, settings: Settings) -> Evaluated:
    """Evaluate a served model through its API only."""
    assistant = ServedAssistant(
        served.client,
        served.model,
        max_tokens=settings.scale.max_tokens,
        temperature=settings.temperature,
        has_user_keys=served.is_ours,
    )
    results = []
    if "conversation" in settings.tasks:
        for seed in settings.seeds:
            results.append(await run_trial(settings.plan, lambda _: assistant, seed))
    suites = [
        await run_suite(suite, assistant, settings.num_tasks, settings.seeds[0])
        for suite in SUITES
        if suite in settings.tasks
    ]
    return Evaluated(name, settings.plan, results, suites)


def unasked_conversations(plan: Plan, seed: int) -> list[list[Message]]:
    """Held-out problems as a plan's users would ask them, in turn, for measuring the KL."""
    rng = random.Random(f"divergence {seed}")
    conversations = []
    for number in range(NUM_DIVERGENCE):
        user = ScriptedUser("divergence", plan.personas[number % len(plan.personas)], seed=rng.getrandbits(31))
        conversations.append(user.opening(random_problem(rng, "held_out")))
    return conversations


if __name__ == "__main__":
    main(sys.argv[1:])
