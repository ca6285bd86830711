"""Measures ordinary requests while 2,000 connections send a byte a second and others send endless headers.

attacker (a process of its own) ─▶ half a head, half a body, endless headers ─┐
16 ordinary connections, one after another ───────────────────────────────────┴─▶ openclaw.server ─▶ scripted engine

python benchmarks/slow_connections.py --seconds 10 --out benchmarks/results/slow_connections.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from http_load import drive, free_port, process
from server_overhead import build_model_dir, chat_request, reply_text, server

NUM_SLOW = 2_000
NUM_ENDLESS = 4
HEADERS_MB = 100
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def attack(port: int, num_slow: int) -> None:
    """Until ended: what the server closes comes again."""

    async def trickle(number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_HEAD if number % 2 else _HEAD + b"content-length: 100000\r\n\r\n")
                while not reader.at_eof() and not writer.is_closing():
                    writer.write(b"x")
                    await asyncio.sleep(1)
                writer.close()
            await asyncio.sleep(1)

    async def endless() -> None:
        line = b"x-a: " + b"a" * 500_000 + b"\r\n"
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_HEAD)
                for _ in range(2 * HEADERS_MB):
                    writer.write(line)
                    await writer.drain()
                    if reader.at_eof():
                        break
                writer.close()
            await asyncio.sleep(0.1)

    await asyncio.gather(*(trickle(number) for number in range(num_slow)), *(endless() for _ in range(NUM_ENDLESS)))


def p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98] * 1e3


async def run(work: Path, seconds: float, num_slow: int) -> dict[str, Any]:
    """Latencies in ms of the same ordinary load, quiet and beside the attack. A refused request raises."""
    model_dir = build_model_dir(work / "model")
    engine_port, server_port = free_port(), free_port()
    engine = [sys.executable, "-m", "slime.engines.scripted", "--model-path", str(model_dir)]
    engine += ["--reply", reply_text(model_dir), "--incremental-streaming-output", "--port", str(engine_port)]
    command = server(model_dir, server_port, engine_port, work / "buffer")
    numbers = iter(range(10**9))
    with (
        process(engine, engine_port, work / "engine.log"),
        process(command, server_port, work / "server.log"),
    ):
        await drive(server_port, 16, chat_request, numbers, seconds / 4)  # warm up
        quiet = await drive(server_port, 16, chat_request, numbers, seconds)
        arguments = (__file__, "--attack", str(server_port), "--slow", str(num_slow))
        attacker = await asyncio.create_subprocess_exec(sys.executable, *arguments, start_new_session=True)
        try:
            await asyncio.sleep(5)  # all of them are connected
            attacked = await drive(server_port, 16, chat_request, numbers, seconds)
            assert attacker.returncode is None, "the attacker ended"
        finally:
            attacker.kill()
            await attacker.wait()
    return {
        "quiet_p99_ms": p99(quiet),
        "attacked_p99_ms": p99(attacked),
        "ratio": p99(attacked) / p99(quiet),
        "quiet_requests": len(quiet),
        "attacked_requests": len(attacked),
        "refused": 0,
        "slow_connections": num_slow,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--attack", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slow", type=int, default=NUM_SLOW)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.attack:
        asyncio.run(attack(options.attack, options.slow))
        return
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as work:
        results = asyncio.run(run(Path(work), options.seconds, options.slow))
    print(
        f"p99 {results['quiet_p99_ms']:.1f} ms quiet, {results['attacked_p99_ms']:.1f} ms beside the attack", end="; "
    )
    print(f"{results['ratio']:.2f} ×, none refused, {time.perf_counter() - began:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
