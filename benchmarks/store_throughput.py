"""Measures the store's throughput in committed turns per second, and its cost to the serving thread.

    python benchmarks/store_throughput.py [--turns 8000] [--connections 64] [--dir DIR]

Three runs on the same disk, all turns about 8 KiB of new text, ids and log-probs:
  fsync     sequential 8 KiB writes, each with fdatasync: the disk's limit without a store
  alone     the store with `connections` concurrent conversations
  serving   the same beside a busy event loop (200 µs of Python per request on one core), as in the API server
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from made_turn import made_turn
from slime.store import Store
from slime.types import Message, Turn

PROMPT_TOKENS = 300
REPLY_TOKENS = 200
TEXT_BYTES = 8192 - 4 * PROMPT_TOKENS - 12 * REPLY_TOKENS


def conversation(name: str) -> Iterator[tuple[Turn, tuple[str, tuple[Message, ...]] | None]]:
    """Turns of a conversation without end, each about 8 KiB more than the one before; restarts every 8 turns."""
    number = 0
    while True:
        messages: list[Message] = [{"role": "system", "content": "You help."}]
        fed: tuple[int, ...] = ()
        parent: str | None = None
        for depth in range(8):
            user: Message = {"role": "user", "content": f"{name} {number} ".ljust(TEXT_BYTES // 2, "q")}
            reply: Message = {"role": "assistant", "content": f"{name} {number} ".ljust(TEXT_BYTES // 2, "a")}
            messages.append(user)
            prompt = fed + tuple(range(number, number + PROMPT_TOKENS))
            ids = tuple(range(REPLY_TOKENS))
            turn_id = f"{name}x{number}"
            place = {"turn_id": turn_id, "session_id": f"{name}-{number - depth}", "parent_id": parent}
            turn = made_turn(messages, prompt, ids, reply, **place)
            yield turn, (parent, (user,)) if parent else None
            messages.append(reply)
            fed, parent, number = prompt + ids, turn_id, number + 1


def spin(seconds: float) -> None:
    """Occupy the interpreter, as parsing and rendering a request do."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def run(directory: Path, turns: int, connections: int, request_s: float) -> dict[str, float]:
    waits: list[float] = []

    async def talk(name: str, count: int) -> None:
        source = conversation(name)
        for _ in range(count):
            if request_s:
                spin(request_s)
            turn, answered = next(source)
            start = time.perf_counter()
            await store.append(turn, next_state_of=answered)
            waits.append(time.perf_counter() - start)

    async with Store.open(directory) as store:
        start, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(talk(f"c{index}", turns // connections) for index in range(connections)))
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    waits.sort()
    size = sum(entry.stat().st_size for entry in os.scandir(directory))
    return {
        "turns_per_s": round(len(waits) / seconds),
        "p50_ms": round(1e3 * waits[len(waits) // 2], 2),
        "p99_ms": round(1e3 * waits[int(len(waits) * 0.99)], 2),
        "cpu_us_per_turn": round(1e6 * cpu / len(waits)),
        "bytes_per_turn": round(size / len(waits)),
    }


def fsync_alone(directory: Path, count: int = 2000) -> dict[str, float]:
    descriptor = os.open(directory / "fsync", os.O_WRONLY | os.O_CREAT, 0o600)
    start = time.perf_counter()
    for _ in range(count):
        os.write(descriptor, b"x" * 8192)
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - start
    os.close(descriptor)
    return {"writes_per_s": round(count / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--dir", type=Path, default=None, help="where to write; a temporary directory when not given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        root = Path(directory)
        for name, request_s in (("alone", 0.0), ("serving", 200e-6)):
            figures = asyncio.run(run(root / name, args.turns, args.connections, request_s))
            print(json.dumps({"run": name} | figures), flush=True)
        print(json.dumps({"run": "fsync"} | fsync_alone(root)))


if __name__ == "__main__":
    main()
