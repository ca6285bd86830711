"""Measures serving during training: time to first token and failed requests while every step swaps weights.

    the same users, through the same server ─┬─ quiet: turns are marked as side turns, nothing is trained
                                             └─ training: effective turns are trained, weights swapped per update

    python benchmarks/serving_while_training.py [--model-dir runs/tiny-model] [--seconds 40]

Prints both and the ratio of the 99th percentiles; `rounds` of quiet and training alternate in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

from openai import AsyncOpenAI
from openclaw_test.demo import RECIPE
from openclaw_test.people.assistants import StreamedAssistant
from openclaw_test.people.personas import PLAIN, TINY
from openclaw_test.people.sessions import Crowd, Exchange
from openclaw_test.people.users import Person
from openclaw_test.tiny.model import build_tiny_model
from openclaw_test.training_run import TrainingRun

SIDE = {"X-Turn-Type": "side"}


async def talk(client: AsyncOpenAI, model: str, num_people: int, seconds: float, seed: int) -> list[Exchange]:
    """Everything that happened while people talked for some time."""
    exchanges: list[Exchange] = []
    assistant = StreamedAssistant(client, model, max_tokens=TINY.max_tokens)
    crowd = Crowd([Person(f"person {index}", PLAIN, seed) for index in range(num_people)], assistant)
    talking = asyncio.create_task(crowd.talk(exchanges.append))
    await asyncio.wait([talking], timeout=seconds)
    crowd.stop()
    await talking
    return exchanges


async def measure(options: argparse.Namespace, run_dir: Path) -> dict[str, float]:
    model_dir = build_tiny_model(options.model_dir)
    quiet: list[Exchange] = []
    training: list[Exchange] = []
    async with TrainingRun(model_dir, run_dir, [*RECIPE, "--num-rollout", "0"]) as run:
        client = AsyncOpenAI(base_url=run.base_url, api_key="local", max_retries=0)
        name = (await client.models.list()).data[0].id
        await talk(client.with_options(default_headers=SIDE), name, options.people, 5, seed=0)  # warm-up
        for number in range(options.rounds):
            aside = client.with_options(default_headers=SIDE)
            quiet += await talk(aside, name, options.people, options.seconds, seed=2 * number + 1)
            training += await talk(client, name, options.people, options.seconds, seed=2 * number + 2)
        steps = run.step
    figures = {"swaps": float(steps), "swap interval s": options.rounds * options.seconds / max(1, steps)}
    for kind, exchanges in (("quiet", quiet), ("training", training)):
        replies = [exchange.reply for exchange in exchanges if exchange.reply]
        first = [reply.first_token_s for reply in replies if reply.first_token_s is not None]
        figures[f"{kind} requests"] = float(len(exchanges))
        figures[f"{kind} failed"] = float(sum(bool(exchange.error) for exchange in exchanges))
        figures[f"{kind} first token p50 ms"] = 1000 * statistics.median(first)
        figures[f"{kind} first token p99 ms"] = 1000 * statistics.quantiles(first, n=100)[98]
    figures["p99 ratio training / quiet"] = figures["training first token p99 ms"] / figures["quiet first token p99 ms"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-dir", type=Path, default=Path("runs/tiny-model"))
    parser.add_argument("--people", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each half of a round")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(options, Path(folder) / "run"))
    for name, figure in figures.items():
        print(f"{name:32} {figure:10.3f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
