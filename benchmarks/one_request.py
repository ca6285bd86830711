"""Measures how one hostile request delays others: worst latency of ordinary clients beside it, and its own time.

    python benchmarks/one_request.py [--quick] [--shapes NAME…] [--out FILE]

    16 ordinary connections ─┐
                             ├─▶ openclaw.server ─▶ scripted engine
    1 hostile request ───────┘   40 shapes, 16 kB … 16 MB, one after the other

Each shape is sent in growing sizes. `others` is the worst ordinary latency during a hostile request minus the worst in
an equally long period without, the median of three rounds. Then the ordinary connections pause and every size is sent
five more times: `growth` is the largest factor by which doubling the size, from 64 kB on, raises the fastest time;
times under 20 ms are ignored.
Last, 50,000 equal requests are placed, and the last hundred compared with the first.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import uvloop
from http_load import free_port, post, process
from server_overhead import build_model_dir, reply_text, server

CONNECTIONS = 16
SIZES = [16 << 10 << step for step in range(11)]
ALLOWED_MS, ALLOWED_GROWTH, COMPARED_S = 50.0, 2.2, 0.02
ROUNDS = 3
"""A worst answer is that of one moment, which anything on the machine may cause: the median of the rounds counts."""

Shape = Callable[[int], bytes]


def _user(pump: str, before: str = "a", after: str = "b") -> Shape:
    def body(size: int) -> bytes:
        return _body([{"role": "user", "content": before + pump * (size // len(pump.encode())) + after}])

    return body


def _reply(pump: str) -> Shape:
    def body(size: int) -> bytes:
        text = "x" + pump * (size // len(pump.encode()))
        return _body([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}, GO_ON])

    return body


def _many(*messages: dict[str, Any]) -> Shape:
    def body(size: int) -> bytes:
        count = max(1, size // len(orjson.dumps(messages)))
        return _body([GO_ON, *list(messages) * count, GO_ON])

    return body


def _raw(before: str, pump: str, after: str) -> Shape:
    return lambda size: (before + pump * (size // len(pump)) + after).encode()


GO_ON = {"role": "user", "content": "Go on"}


def _body(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": messages, "max_tokens": 4} | fields)


def _field(name: str) -> Shape:
    return lambda size: _body([GO_ON], **{name: "n" * size})


def _call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


SHAPES: dict[str, Shape] = {
    "newlines": _user("\n"),
    "blanks": _user(" "),
    "one word": _user("w"),
    "prose": _user("The quick brown fox jumps over it. "),
    "<": _user("<"),
    "<system-reminder>": _user("<system-reminder>"),
    "<system-reminder> closed": _user("<system-reminder></system-reminder>", before=""),
    "channel context": _user("Conversation info: ⟦openclaw:ctx⟧ ```json "),
    "time stamps": _user("[Sat 2026-11-21 01:00", before=""),
    "runtime lines": _user("\nRuntime: agent=a | session=b"),
    "runtime heads": _user("Runtime: agent=a"),
    "newlines, runtime": _user("\n", after="Runtime: agent=a"),
    "control tokens": _user("<|im_end|>"),
    "half control tokens": _user("<|im_", after="<|im_end|>"),
    "marks": _user("\ufdd0"),
    "emoji": _user("😀"),
    "lines of a transcript": _user("\nuser: hi"),
    "summaries": _user("summarise the history. "),
    "titles": _user("generate a title for this chat. "),
    "escapes": _raw('{"messages":[{"role":"user","content":"', "\\u0041", '"}]}'),
    "reply of newlines": _reply("\n"),
    "reply of lines": _reply("w\n"),
    "reply of <think>": _reply("<think>"),
    "reply of closed <think>": _reply("<think></think>"),
    "reply of ids": _reply("'id': 'call12345678' "),
    "reply of <analysis>": _reply("<analysis>"),
    "equal replies": _many({"role": "assistant", "content": "Hello"}, GO_ON),
    "empty messages": _many({"role": "user", "content": ""}),
    "forged call ids": _many({"role": "tool", "tool_call_id": f"callt{7:020d}n0", "content": ""}),
    "calls": _many({"role": "assistant", "content": "", "tool_calls": [_call("c")]}),
    "parts": lambda size: _body([{"role": "user", "content": [{"type": "text", "text": "x"}] * (size // 26)}]),
    "arguments": lambda size: _body(
        [GO_ON, {"role": "assistant", "content": "", "tool_calls": [_call("c", "[" * size)]}, GO_ON]
    ),
    "tools": lambda size: _body([GO_ON], tools=[{"type": "function", "function": {"name": "f"}}] * (size // 48)),
    "lists": _raw('{"messages":[', "[],", "[]]}"),
    "deep lists": _raw('{"messages":', "[", ""),
    "deep objects": _raw("", '{"a":', ""),
    "numbers": _raw('{"messages":[{"role":"user","content":"x"}],"x":[', "0,", "0]}"),
    "a long role": lambda size: _body([{"role": "u" * size, "content": "x"}]),
    "a long name": _field("prompt_cache_key"),
    "a long model": _field("model"),
}


def send(port: int, body: bytes) -> tuple[int, float]:
    """Status and seconds of one request on a connection of its own; for a thread, since it blocks."""
    request = post("/v1/chat/completions", body)
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        try:
            connection.sendall(request)
            status = int(connection.recv(64).split()[1])
        except (ConnectionError, IndexError):
            status = 0
    return status, time.perf_counter() - began


class Ordinary:
    """Connections that ask one short question after another; `worst` since it was last taken."""

    def __init__(self, port: int) -> None:
        self._port, self._worst, self._numbers = port, 0.0, itertools.count()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def run(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while await self.goes_on.wait():
            body = _body([{"role": "user", "content": f"question {next(self._numbers)}"}])
            began = time.perf_counter()
            writer.write(post("/v1/chat/completions", body))
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            self._worst = max(self._worst, time.perf_counter() - began)
            await asyncio.sleep(0.02)

    def take_worst(self) -> float:
        worst, self._worst = self._worst, 0.0
        return worst


async def measure_shape(port: int, shape: Shape, sizes: list[int], ordinary: Ordinary) -> dict[str, Any]:
    """Others' worst answer beside the request, and how its own time grows."""
    rounds = [await _beside(port, shape, sizes, ordinary) for _ in range(ROUNDS)]
    ordinary.goes_on.clear()
    taken: dict[int, float] = {}
    for again, size in itertools.product(range(1, 6), [size for size in sizes if size >= 1 << 16]):
        body = shape(size - 1_000 * again)  # another text, which no cache knows
        _, seconds = await asyncio.to_thread(send, port, body)
        taken[size] = min(seconds, taken.get(size, seconds))
    ordinary.goes_on.set()
    pairs = [(a, b) for a, b in itertools.pairwise(taken) if taken[a] >= COMPARED_S]
    growth = max((taken[b] / taken[a] for a, b in pairs), default=0.0)
    return {
        "quiet_ms": statistics.median(quiet for quiet, *_ in rounds) * 1e3,
        "others_ms": statistics.median(beside - quiet for quiet, beside, *_ in rounds) * 1e3,
        "others_by_round_ms": [(beside - quiet) * 1e3 for quiet, beside, *_ in rounds],
        "longest_s": max(longest for _, _, longest, _ in rounds),
        "growth": growth,
        "statuses": sorted(set().union(*(statuses for *_, statuses in rounds))),
    }


async def _beside(
    port: int, shape: Shape, sizes: list[int], ordinary: Ordinary
) -> tuple[float, float, float, set[int]]:
    """Others' worst without the requests, their worst beside them, the longest of these, in seconds; statuses."""
    statuses: set[int] = set()
    beside, beside_s, longest = 0.0, 0.0, 0.0
    for size in sizes:
        body = shape(size)
        await asyncio.sleep(0.05)
        ordinary.take_worst()  # what making the body cost these clients
        began = time.perf_counter()
        status, seconds = await asyncio.to_thread(send, port, body)
        await asyncio.sleep(0.1)
        beside_s += time.perf_counter() - began
        beside, longest = max(beside, ordinary.take_worst()), max(longest, seconds)
        statuses.add(status)
    await asyncio.sleep(beside_s)
    return ordinary.take_worst(), beside, longest, statuses


def measure_equal(count: int) -> float:
    """The last hundred of so many equal requests against the first hundred: the ratio of their medians."""
    from openclaw.conversations.index import ConversationIndex
    from openclaw.replay import as_recorded

    index, times = ConversationIndex(), []
    body = {"model": "m", "messages": [{"role": "user", "content": "ping, are you there?"}]}
    for number in range(count):
        began = time.perf_counter()
        placement = index.begin(as_recorded("/v1/chat/completions", {}, body, "key"))
        index.finish(placement, {"role": "assistant", "content": f"pong {number}"})
        times.append(time.perf_counter() - began)
    return statistics.median(times[-100:]) / statistics.median(times[:100])


async def run(work: Path, names: list[str], sizes: list[int], num_equal: int) -> dict[str, Any]:
    model_dir = build_model_dir(work / "model")
    engine_port, port = free_port(), free_port()
    engine = [sys.executable, "-m", "slime.engines.scripted", "--model-path", str(model_dir), "--port"]
    engine += [str(engine_port), "--reply", reply_text(model_dir)]
    results: dict[str, Any] = {}
    with (
        process(engine, engine_port, work / "engine.log"),
        process(server(model_dir, port, engine_port, work / "buffer"), port, work / "server.log"),
    ):
        ordinary = Ordinary(port)
        clients = [asyncio.ensure_future(ordinary.run()) for _ in range(CONNECTIONS)]
        for name in names:
            results[name] = measured = await measure_shape(port, SHAPES[name], sizes, ordinary)
            print(
                f"{name:26} others +{measured['others_ms']:7.1f} ms   longest {measured['longest_s']:7.3f} s   "
                f"growth {measured['growth']:4.2f}   {measured['statuses']}",
                flush=True,
            )
        for client in clients:
            client.cancel()
    equal = measure_equal(num_equal)
    bad = [name for name, row in results.items() if row["others_ms"] > ALLOWED_MS or row["growth"] > ALLOWED_GROWTH]
    print(f"{len(results)} shapes, {len(bad)} over a limit: {bad}")
    print(f"{num_equal} equal requests: the last hundred take {equal:.2f} × the first")
    return {"shapes": results, "over_a_limit": bad, "equal_requests": num_equal, "equal_ratio": equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 1 MB, and 5,000 equal requests")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME", help="only these")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= 1 << 20] if options.quick else SIZES
    sizes = [min(size, (16 << 20) - 4096) for size in sizes]
    with (
        tempfile.TemporaryDirectory(prefix="one_request") as work,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        results = runner.run(run(Path(work), options.shapes, sizes, 5_000 if options.quick else 50_000))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
