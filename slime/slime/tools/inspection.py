"""Inspection of a rollout and of the sessions it reads: nothing is trained, and what is stored stays as it is.

    Store ─ turns with a next state ─▶ a copy, in a store of its own ─ the method's rollout ─▶ a JSON file a sample
                                                                            └─▶ excluded ─▶ its reason, printed

A teacher needs an engine: `--engine-url`, where one with the policy's tokenizer listens, or `--teacher-url`. Without
one, every turn goes without a teacher, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime.chat import ChatFormat
from slime.config.loader import load_config
from slime.config.output_paths import output_path
from slime.config.sections import Config
from slime.engines.client import HttpEngine
from slime.errors import ConfigError, OpenClawError
from slime.judging.hindsight.teacher import Teacher, Unscored
from slime.judging.rules.judge import RuleJudge
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import ROLLOUT
from slime.private_files import make_private_dir, write_private
from slime.progress import Progress
from slime.rollout.context import RolloutContext, offered
from slime.rollout.hindsight import hint_source
from slime.store import Store
from slime.types import Sample, SampleGroup, Turn, TurnState

Inspected = tuple[Mapping[str, SampleGroup], Mapping[str, str]]

_OWNER = "inspection"
_PATIENCE_S = 120.0
"""How long a rollout may go without deciding about a turn."""


def main(rollout: Callable[..., Any], prog: str, arguments: Sequence[str] | None = None) -> int:
    """`python -m openclaw_combine.test_rollout --num-samples 10 --output-dir ./debug_rollouts`; gives its exit status.

    Args:
        rollout: the method's `generate_rollout`.
        arguments: `--num-samples`, `--output-dir` and any flag of a training run; what was typed unless given.
    """
    parser = argparse.ArgumentParser(prog, description="Show what a rollout makes of stored turns.", allow_abbrev=False)
    parser.add_argument("--num-samples", type=int, default=10, help="samples to make")
    parser.add_argument("--output-dir", type=Path, default=Path("debug_rollouts"), help="where they are written")
    options, flags = parser.parse_known_args(arguments)
    try:
        config = load_config(flags, prog=prog)
        output_dir = output_path("--output-dir", options.output_dir, config.output, os.environ)
        samples, excluded = asyncio.run(inspect_rollout(rollout, config, options.num_samples))
    except OpenClawError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    make_private_dir(output_dir)
    for number, (turn_id, group) in enumerate(samples.items(), 1):
        shown = as_json(turn_id, group.samples[0])
        path = output_dir / f"sample-{number:04d}.json"
        write_private(path, json.dumps(shown, ensure_ascii=False, indent=1) + "\n")
        print(f"{path}  turn={turn_id} reward={shown['reward']:g} trained={shown['trained']} taught={shown['taught']}")
    for turn_id, reason in excluded.items():
        print(f"no sample   turn={turn_id} {reason}")
    return 0


def as_json(turn_id: str, sample: Sample) -> dict[str, Any]:
    """A sample as people read it: counts first, then every stream."""
    return {
        "turn_id": turn_id,
        "reward": sample.values["reward"],
        "tokens": len(sample.token_ids),
        "trained": sample.num_trainable_tokens,
        "taught": sum(map(int, sample.streams.get("has_teacher", ()))),
        "values": sample.values,
        "token_ids": sample.token_ids,
        "streams": sample.streams,
    }


async def inspect_rollout(rollout: Callable[..., Any], config: Config, num_samples: int) -> Inspected:
    """Have a rollout make up to `num_samples` samples of stored turns, judged by the rules.

    Returns:
        The samples by the turn they came from, and by turn why the others gave none.

    Raises:
        ConfigError: there is no store where `--rl-buffer-dir` says, or no turn in it that somebody answered.
    """
    buffer_dir = config.server.rl_buffer_dir
    async with Store.open_existing(buffer_dir) as stored:
        turns = [turn async for _, session in stored.sessions() for turn in session if turn.next_state]
    if not turns:
        raise ConfigError(f"--rl-buffer-dir {buffer_dir}: no turn with a next state; talk to a server that captures")
    call = NamedCall.match(rollout, ROLLOUT.names)
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            store = await stack.enter_async_context(Store.open(Path(folder)))
            for turn in turns:
                await store.append(replace(turn, state=TurnState.SERVED, next_state=None))
                await store.attach(turn.turn_id, turn.next_state or ())
            ctx = RolloutContext(store, RuleJudge(), _OWNER, Progress(), config.rollout, config.judge, config.teacher)
            values = offered(
                ctx,
                config,
                hint_source=hint_source(replace(config, judge=replace(config.judge, judge="rule")), None),
                teacher=await stack.enter_async_context(_teacher(config)),
            )
            return await _collect(call(values), store, len(turns), num_samples)


async def _collect(samples: AsyncIterator[SampleGroup], store: Store, num_turns: int, num_samples: int) -> Inspected:
    found: dict[str, SampleGroup] = {}

    async def consume() -> None:
        async for group in samples:
            found[group.group_id] = group
            if len(found) == num_samples:
                return

    collecting = asyncio.create_task(consume())
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not collecting.done() and len(found) + (await store.counts())[TurnState.EXCLUDED] < num_turns:
                await asyncio.wait([collecting], timeout=0.05)
        if collecting.done():
            collecting.result()
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
    turns = [turn async for _, session in store.sessions() for turn in session]
    return found, {turn.turn_id: turn.reason for turn in turns if turn.state is TurnState.EXCLUDED}


class _NoTeacher(Teacher):
    """Stands where a teacher would, and says what is missing."""

    def __init__(self) -> None:
        pass

    async def teach(self, turn: Turn, hints: Sequence[str], prior: Turn | None = None) -> Unscored:
        return Unscored("nobody to ask: give --engine-url or --teacher-url, and --model-path")


@contextlib.asynccontextmanager
async def _teacher(config: Config) -> AsyncIterator[Teacher]:
    policy_url = config.engine.engine_url.partition(",")[0]
    url = config.teacher.teacher_url or policy_url
    if not url or not config.model.model_path:
        yield _NoTeacher()
        return
    token = config.engine.engine_token
    async with HttpEngine(url, token=token) as engine, HttpEngine(policy_url or url, token=token) as policy:
        yield Teacher(
            engine,
            policy,
            ChatFormat.load(config.model.model_path),
            config.teacher,
            adapter_of=config.lora.adapter_of,
            is_policy=not config.teacher.teacher_url and config.teacher.teacher == "policy",
        )


def inspect_sessions(directory: str | Path) -> dict[str, list[dict[str, Any]]]:
    """The sessions of a store, printed one line a turn, and given by session.

    >>> inspect_sessions("./rl_buffer")["s1"][0]
    {'turn_id': 't1', 'type': 'main', 'state': 'judged', 'score': 1.0, 'hint': None, 'request': 'Hi', 'reply': 'Hello.'}

    Raises:
        ConfigError: there is no store.
    """
    sessions = asyncio.run(_sessions(Path(directory)))
    for session_id, turns in sessions.items():
        print(f"{session_id}  {len(turns)} turns")
        for turn in turns:
            score = "" if turn["score"] is None else f"{turn['score']:+g}"
            print(
                f"  {turn['type']:<5} {turn['state']:<9} {score:>3}  {turn['request'][:40]!r} → {turn['reply'][:40]!r}"
            )
    return sessions


async def _sessions(directory: Path) -> dict[str, list[dict[str, Any]]]:
    sessions: dict[str, list[dict[str, Any]]] = {}
    async with Store.open_existing(directory) as store:
        async for session_id, turns in store.sessions():
            sessions[session_id] = [
                {
                    "turn_id": turn.turn_id,
                    "type": "main" if turn.kind.is_trainable else "side",
                    "state": turn.state.value,
                    "score": verdict.score if verdict else None,
                    "hint": verdict.hint if verdict else None,
                    "request": str(turn.messages[-1].get("content") or ""),
                    "reply": turn.completion.text,
                }
                for turn in turns
                for verdict in [await store.verdict(turn.turn_id)]
            ]
    return sessions
