"""Benchmarks prefix caching on long sessions: the embedded engine against `transformers serve` and without a cache.

    python benchmarks/random_weights/engine_reuse.py [--quick] [--sessions 16] [--turns 10]

Two figures, both sides alternating in the same run on the same random weights, one thread each:

- tokens/s of concurrent sessions, every turn of which repeats the whole conversation so far, against `transformers
  serve` and `transformers serve --continuous-batching`. Prompts and replies are equally long on all sides.
- time to first token of a tenth turn, streamed to a single session, with and without the nine earlier turns cached.

The peer needs `pip install 'transformers[serving]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import string
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from engine_process import KEEPALIVE_S, SHAPES, Served, build_model, engine_process, served
from transformers import AutoTokenizer

NUM_USER, NUM_REPLY = 80, 40  # tokens; a byte is one


def text_of(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(string.ascii_lowercase + " ", k=length))


class Sessions:
    """Conversations whose user turns are fixed; what the replies say is up to the side, how long they are is not."""

    def __init__(self, tokenizer: Any, num_sessions: int, num_turns: int, seed: int) -> None:
        rng = random.Random(seed)
        self._tokenizer = tokenizer
        self.scripts = [[text_of(rng, NUM_USER) for _ in range(num_turns)] for _ in range(num_sessions)]
        self.replies = [[text_of(rng, NUM_REPLY) for _ in range(num_turns)] for _ in range(num_sessions)]

    async def run_engine(self, client: aiohttp.ClientSession) -> tuple[int, float]:
        """(tokens generated, seconds): ids in, ids out, each turn's prompt extends what was sampled before."""

        async def session(script: list[str]) -> int:
            ids: list[int] = []
            total = 0
            for user in script:
                ids += self._tokenizer.encode(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
                answer = await generate(client, ids, NUM_REPLY)
                ids += answer["output_ids"] + self._tokenizer.encode("<|im_end|>\n")
                total += len(answer["output_ids"])
            return total

        return await timed([session(script) for script in self.scripts])

    async def run_peer(self, client: aiohttp.ClientSession, model: str) -> tuple[int, float]:
        """(tokens generated, seconds) over /v1/chat/completions."""

        async def session(script: list[str], replies: list[str]) -> int:
            messages: list[dict[str, str]] = []
            total = 0
            for user, reply in zip(script, replies, strict=True):
                messages.append({"role": "user", "content": user})
                body = {"model": model, "messages": messages, "max_tokens": NUM_REPLY, "temperature": 1.0}
                async with client.post("/v1/chat/completions", json=body) as response:
                    assert response.status == 200, await response.text()
                    total += (await response.json())["usage"]["completion_tokens"]
                messages.append({"role": "assistant", "content": reply})
            return total

        pairs = zip(self.scripts, self.replies, strict=True)
        return await timed([session(script, replies) for script, replies in pairs])


async def timed(sessions: list[Any]) -> tuple[int, float]:
    started = time.perf_counter()
    totals = await asyncio.gather(*sessions)
    return sum(totals), time.perf_counter() - started


async def generate(client: aiohttp.ClientSession, ids: list[int], num_new: int) -> dict[str, Any]:
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": num_new, "ignore_eos": True},
        "return_logprob": True,
    }
    async with client.post("/generate", json=body) as response:
        assert response.status == 200, await response.text()
        return dict(await response.json())


async def first_token_s(client: aiohttp.ClientSession, ids: list[int]) -> float:
    """Seconds until the first event of a stream."""
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}, "stream": True}
    started = time.perf_counter()
    async with client.post("/generate", json=body) as response:
        async for _ in response.content:
            elapsed = time.perf_counter() - started
            break
        await response.read()
    return elapsed


async def tenth_turn(url: str, rounds: int, num_user: int = 100, num_reply: int = 60) -> dict[str, float]:
    """Median time to the first token of a tenth turn, in seconds, with and without the cache of the nine before."""
    rng = random.Random(5)
    times: dict[str, list[float]] = {"reused": [], "anew": []}
    async with aiohttp.ClientSession(url) as client:
        for round_number in range(rounds + 1):
            ids: list[int] = []
            for _ in range(9):
                ids += [rng.randrange(256) for _ in range(num_user)]
                ids += (await generate(client, ids, num_reply))["output_ids"]
            ids += [rng.randrange(256) for _ in range(num_user)]
            reused = await first_token_s(client, ids)
            await flush(client)
            anew = await first_token_s(client, ids)
            if round_number:  # the first one warms up
                times["reused"].append(reused)
                times["anew"].append(anew)
    return {side: statistics.median(seconds) for side, seconds in times.items()}


async def flush(client: aiohttp.ClientSession) -> None:
    async with client.post("/flush_cache?timeout=5") as response:
        assert response.status == 200, await response.text()


async def compare(servers: dict[str, Served], model_dir: Path, args: argparse.Namespace) -> dict[str, float]:
    """Median tokens/s of every side."""
    rates: dict[str, list[float]] = {side: [] for side in servers}
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    timeout = aiohttp.ClientTimeout(total=None)
    for round_number in range(args.rounds + 1):
        # The first round warms up, with one short conversation.
        num_sessions, num_turns = (args.sessions, args.turns) if round_number else (1, 1)
        sessions = Sessions(tokenizer, num_sessions, num_turns, seed=round_number)
        for side, server in servers.items():
            with contextlib.ExitStack() as others:
                for other in servers.values():
                    if other is not server:
                        others.enter_context(other.stopped())
                async with aiohttp.ClientSession(
                    server.url, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S), timeout=timeout
                ) as client:
                    is_engine = side == "engine"
                    run = sessions.run_engine(client) if is_engine else sessions.run_peer(client, str(model_dir))
                    used_s = server.cpu_s()
                    num_tokens, seconds = await run
                    used_s = server.cpu_s() - used_s
            if round_number:
                rates[side].append(num_tokens / seconds)
                print(
                    f"  round {round_number}: {side:32s} {num_tokens / seconds:8.1f} tok/s, "
                    f"{num_tokens / used_s:8.1f} tok/CPU-s",
                    flush=True,
                )
    return {side: statistics.median(values) for side, values in rates.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of six sessions of five turns")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small", help="of the random model")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.quick:
        args.sessions, args.turns, args.rounds = 6, 5, 1
    with tempfile.TemporaryDirectory() as directory:
        model_dir = build_model(Path(directory), args.shape)
        peer = [str(Path(sys.executable).parent / "transformers"), "serve", str(model_dir), "--device", "cpu"]
        with (
            engine_process(model_dir, "--device", "cpu") as engine,
            served(peer, "/health", "--dtype", "float32") as plain,
            served(peer, "/health", "--dtype", "float32", "--continuous-batching") as batching,
        ):
            servers = {"engine": engine, "transformers serve": plain, "transformers serve, batching": batching}
            rates = asyncio.run(compare(servers, model_dir, args))
        with engine_process(model_dir, "--device", "cpu") as engine:
            first = asyncio.run(tenth_turn(engine.url, 3 if args.quick else 7))
    best_peer = max(rate for side, rate in rates.items() if side != "engine")
    ratios = {"sessions": rates["engine"] / best_peer, "tenth_turn": first["anew"] / first["reused"]}
    print(f"{args.sessions} sessions: {json.dumps(rates)}: ratio to the better peer {ratios['sessions']:.2f}")
    print(
        f"first token of a tenth turn: {first['reused'] * 1e3:.1f} ms reused, {first['anew'] * 1e3:.1f} ms anew: "
        f"ratio {ratios['tenth_turn']:.2f}"
    )
    print(json.dumps({"benchmark": "engine_reuse", "shape": args.shape, "rates": rates, "first": first, **ratios}))
    return 0 if ratios["sessions"] >= 4.0 and ratios["tenth_turn"] >= 5.0 else 1


if __name__ == "__main__":
    sys.exit(main())
