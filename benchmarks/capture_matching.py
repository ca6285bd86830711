"""Measures capture's cost per request: microseconds of `ConversationIndex.begin` and `finish`, and bytes per turn.

    python benchmarks/capture_matching.py [--turns 20000]

Covers four ways of finding the parent of a ten-message request in a well-filled index. The baseline is the time to
parse the same request as JSON in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from slime.types import Message

from openclaw.conversations.index import ConversationIndex, IncomingRequest, Placement
from openclaw.replay import as_recorded
from openclaw.requests.turn_ids import tool_call_id

_REPEATS = 2000


def _request(messages: list[Message]) -> IncomingRequest:
    body = {"model": "m", "messages": messages, "stream": True, "tools": [{"type": "function"}]}
    return as_recorded("/v1/chat/completions", {"user-agent": "bench"}, body, "key", time.time())


def _conversation(index: ConversationIndex, name: str, with_calls: bool, turns: int) -> list[Message]:
    """A conversation of so many turns; returns the history of the next request."""
    history: list[Message] = [{"role": "user", "content": f"Please look after {name} " + "with some care " * 12}]
    for number in range(turns):
        placement = index.begin(_request(history))
        text = f"I look at step {number}. " + "It is like the last. " * 15
        history = history + _reply(index, placement, text, with_calls)
    return history


def _reply(index: ConversationIndex, placement: Placement, text: str, with_calls: bool) -> list[Message]:
    message: Message = {"role": "assistant", "content": text}
    follow: Message = {"role": "user", "content": "Go on, but shorter, " + "if you please " * 10}
    if with_calls:
        call_id = tool_call_id(placement.turn_id, 0)
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": "run", "arguments": '{"command": "ls -la"}'}}
        ]
        follow = {"role": "tool", "tool_call_id": call_id, "content": "total 24\n" + "drwxr-xr-x 3 a b 4096 .\n" * 20}
    index.finish(placement, message)
    return [message, follow]


def _microseconds(call: Callable[[], Any]) -> float:
    """The median of many single calls."""
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - started)
    return statistics.median(times) / 1000


def _begin_and_drop(index: ConversationIndex, request: IncomingRequest) -> Callable[[], None]:
    """Begin the request and fail it, so that each repeat meets the same index."""

    def call() -> None:
        index.fail(index.begin(request))

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000, help="turns in the index before measuring")
    arguments = parser.parse_args()

    tracemalloc.start()
    index = ConversationIndex(max_turns=arguments.turns)
    before = tracemalloc.get_traced_memory()[0]
    for number in range(arguments.turns // 5):
        _conversation(index, f"project {number}", with_calls=number % 2 == 0, turns=5)
    per_turn = (tracemalloc.get_traced_memory()[0] - before) / index.num_turns
    tracemalloc.stop()

    with_calls = _conversation(index, "calls", True, 5)[:-1]
    with_text = _conversation(index, "text", False, 5)[:-1]
    figures = {
        "json.loads of the request": _microseconds(
            lambda written=json.dumps(_request(with_text).body): json.loads(written)  # type: ignore[misc]
        ),
        "parent by tool-call id": _microseconds(_begin_and_drop(index, _request(with_calls))),
        "parent by text and prefix": _microseconds(_begin_and_drop(index, _request(with_text))),
        "parent by text, history moved": _microseconds(
            _begin_and_drop(index, _request([{"role": "user", "content": "A note"}, *with_text]))
        ),
        "a new conversation": _microseconds(
            _begin_and_drop(index, _request([{"role": "user", "content": "Something new " * 20}]))
        ),
    }
    print(json.dumps({"turns": index.num_turns, "bytes_per_turn": round(per_turn), "median_us": figures}, indent=2))


if __name__ == "__main__":
    main()
