"""Measures the server's restart time, recall of conversations and memory with many conversations.

    python benchmarks/many_conversations.py restart [--conversations 10000] [--turns 10] [--ids 12000]
    python benchmarks/many_conversations.py memory [--conversations 10000]

`restart` builds a store with the library's own records, then starts the server three times on an empty store and three
times on that one, attached to a running engine. It measures the seconds from process start to a `/readyz` of 200, and
resident memory at that point. After the last start, every conversation continues without tool calls, and each stored
parent must be that conversation's last turn. `memory` opens conversations of three short turns over HTTP and measures
the server's resident memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import uvloop
from http_load import Connection, free_port, post, process
from server_overhead import build_model_dir, reply_text, server

CONNECTIONS = 16
COMPLETION = 200
KEY = "local"  # what `http_load.post` sends


def question(conversation: int, turn: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {turn} of conversation {conversation}: what comes next?"}


def answer(conversation: int, turn: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"Answer {turn} of conversation {conversation}.\nAnd a second line."}


def history(conversation: int, turns: int) -> list[dict[str, Any]]:
    return [say(conversation, turn) for turn in range(turns) for say in (question, answer)]


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


def build_store(directory: Path, conversations: int, turns: int, num_ids: int) -> None:
    """Turns as the server would have stored them, in long transactions and without a sync for each."""
    from slime.store import Store
    from slime.store.connection import Connection

    store = Store.open(directory)
    asyncio.run(store.close())
    connection = Connection(store.path, writes=True)
    connection.execute("PRAGMA synchronous = OFF")
    for number in range(conversations):
        if number % 100 == 0:
            connection.execute("BEGIN IMMEDIATE")
        _store_conversation(connection, number, turns, num_ids)
        if number % 100 == 99 or number == conversations - 1:
            connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _store_conversation(connection: Any, number: int, turns: int, num_ids: int) -> None:
    from made_turn import made_turn
    from slime.store import writes

    from openclaw.conversations.index import ConversationIndex
    from openclaw.conversations.stored_turns import keys_of
    from openclaw.replay import as_recorded

    index, fed = ConversationIndex(), tuple[int, ...]()
    asked = num_ids // turns - COMPLETION
    for turn_number in range(turns):
        messages = [*history(number, turn_number), question(number, turn_number)]
        body = {"model": "scripted", "messages": messages}
        placement = index.begin(as_recorded("/v1/chat/completions", {}, body, KEY))
        first = (number * 31 + turn_number * 7) % 20_000
        prompt = fed + tuple(range(first, first + asked))
        sampled = tuple(range(first, first + COMPLETION))
        reply = answer(number, turn_number)
        place = {name: getattr(placement, name) for name in ("turn_id", "session_id", "parent_id", "kind", "matching")}
        turn = made_turn(messages, prompt, sampled, reply, source=placement.credential, **place)
        answered = (placement.parent_id, placement.next_state) if placement.parent_id and placement.next_state else None
        writes.append(connection, turn, answered, keys_of(turn))
        index.finish(placement, reply)
        fed = prompt + sampled


# ── the server ───────────────────────────────────────────────────────────────────────────────────────────────────────


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


@contextlib.contextmanager
def engine(work: Path, model_dir: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "slime.engines.scripted", "--model-path", str(model_dir), "--port", str(port)]
    with process([*command, "--reply", reply_text(model_dir)], port, work / "engine.log"):
        yield port


@contextlib.contextmanager
def ready_server(work: Path, command: list[str], port: int) -> Iterator[tuple[float, subprocess.Popen[bytes]]]:
    """A server, and the seconds from its start until it was ready."""
    began = time.perf_counter()
    with process(command, port, work / "server.log") as child:
        while not asyncio.run(_is_ready(port)):
            time.sleep(0.002)
        yield time.perf_counter() - began, child


async def _is_ready(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    status = await reader.readline()
    writer.close()
    return b" 200 " in status


async def ask_all(port: int, bodies: Iterator[tuple[int, dict[str, Any]]]) -> dict[int, str]:
    """Ask everything over a few connections; the turn that each answer belongs to."""
    turns: dict[int, str] = {}

    async def client() -> None:
        connection = await Connection.open(port)
        for number, body in bodies:
            raw = await connection.ask(post("/v1/chat/completions", orjson.dumps(body)))
            turns[number] = orjson.loads(raw)["openclaw"]["turn"]
        connection.close()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return turns


def found_parents(store: Path, asked: dict[int, str], turns: int) -> int:
    """How many of the turns were stored with the last turn of their conversation as their parent."""
    import sqlite3

    from slime.store import Store

    path = Store.open(store, appends=False).path
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    found = 0
    for number, turn_id in asked.items():
        (parent,) = connection.execute("SELECT parent_id FROM turns WHERE turn_id = ?", (turn_id,)).fetchone()
        row = connection.execute(
            "SELECT contents.body FROM turns JOIN records USING (seq) JOIN contents ON content_id = reply_id "
            "WHERE turn_id = ?",
            (parent,),
        ).fetchone()
        found += row is not None and orjson.loads(row[0]) == answer(number, turns - 1)
    return found


def restart(work: Path, conversations: int, turns: int, num_ids: int) -> dict[str, Any]:
    model_dir, results = build_model_dir(work / "model"), dict[str, Any]()
    began = time.perf_counter()
    build_store(work / "full", conversations, turns, num_ids)
    print(f"{conversations * turns} turns stored in {time.perf_counter() - began:.0f} s", flush=True)
    with engine(work, model_dir) as engine_port:
        for name in ("empty", "full"):
            starts, memory = [], 0.0
            for number in range(3):
                port = free_port()
                directory = work / (f"empty{number}" if name == "empty" else "full")
                with ready_server(work, server(model_dir, port, engine_port, directory), port) as (seconds, child):
                    starts.append(seconds)
                    memory = resident_mb(child.pid)
                    if name == "full" and number == 2:
                        bodies = (
                            (n, {"model": "m", "messages": [*history(n, turns), question(n, turns)], "max_tokens": 4})
                            for n in range(conversations)
                        )
                        asked = asyncio.run(ask_all(port, bodies))
                        results["after_all_went_on_mb"] = resident_mb(child.pid)
            results |= {f"{name}_ready_s": starts, f"{name}_mb": memory}
            print(f"{name} store: ready after {statistics.median(starts):.2f} s, {memory:.0f} MB", flush=True)
    results["parents_found"] = found_parents(work / "full", asked, turns)
    print(f"{results['full_mb'] - results['empty_mb']:.0f} MB more; parents found: ", end="")
    print(f"{results['parents_found']} of {conversations}; then {results['after_all_went_on_mb']:.0f} MB")
    return results


def memory(work: Path, conversations: int) -> dict[str, Any]:
    model_dir, port = build_model_dir(work / "model"), free_port()
    with (
        engine(work, model_dir) as engine_port,
        ready_server(work, server(model_dir, port, engine_port, work / "buffer"), port) as (_, child),
    ):
        results = {"empty_mb": resident_mb(child.pid)}
        replies: dict[int, list[dict[str, Any]]] = {number: [] for number in range(conversations)}
        for turn in range(3):
            asyncio.run(_ask_turn(port, replies, turn))
            results[f"after_{turn + 1}_turns_mb"] = resident_mb(child.pid)
            print(f"{conversations} sessions of {turn + 1} turns: {resident_mb(child.pid):.0f} MB", flush=True)
    return results


async def _ask_turn(port: int, replies: dict[int, list[dict[str, Any]]], turn: int) -> None:
    numbers = iter(replies)

    async def client() -> None:
        connection = await Connection.open(port)
        for number in numbers:
            messages = [question(number, 0)]
            for earlier, reply in enumerate(replies[number]):
                messages += (reply, question(number, earlier + 1))
            body = {"model": "m", "messages": messages, "max_tokens": 32}
            raw = await connection.ask(post("/v1/chat/completions", orjson.dumps(body)))
            replies[number].append(
                {"role": "assistant", "content": orjson.loads(raw)["choices"][0]["message"]["content"]}
            )
        connection.close()

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("restart", "memory"))
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--ids", type=int, default=12_000, help="that the last turn of a conversation is fed")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    uvloop.install()
    with tempfile.TemporaryDirectory(prefix="many_conversations") as work:
        if options.part == "restart":
            results = restart(Path(work), options.conversations, options.turns, options.ids)
        else:
            results = memory(Path(work), options.conversations)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
