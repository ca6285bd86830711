"""A process that appends conversations for ever and says what was acknowledged; made to be killed.

    python appending_process.py DIR FIRST

Prints `ack <turn id>` after each append has returned, `failed <turn id>` when it raised a `StoreError`. Turns of
session `s<k>` are `<k>x<n>`, each the child of the one before; numbering goes on at FIRST.
"""

from __future__ import annotations

import asyncio
import sys

from slime.errors import StoreError
from slime.store import Store
from stored_turns import build_turn

SESSIONS = 4


async def append_for_ever(directory: str, first: int) -> None:
    store = Store.open(directory)
    print("open", flush=True)

    async def converse(session: int) -> None:
        parent, number = None, first
        while True:
            turn = build_turn(f"{session}x{number}", parent=parent, session_id=f"s{session}")
            answered = None if parent is None else (parent.turn_id, turn.messages[-1:])
            try:
                await store.append(turn, next_state_of=answered)
            except StoreError:
                print(f"failed {turn.turn_id}", flush=True)
                await asyncio.sleep(0.02)
            else:
                print(f"ack {turn.turn_id}", flush=True)
                parent = turn if number % 10 else None  # a new root now and then
            number += 1

    await asyncio.gather(*(converse(session) for session in range(SESSIONS)))


if __name__ == "__main__":
    asyncio.run(append_for_ever(sys.argv[1], int(sys.argv[2])))
