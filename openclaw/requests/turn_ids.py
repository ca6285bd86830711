"""Generates turn ids, and the tool-call ids that carry them through every client.

Clients rewrite nearly everything in a reply but return our tool-call ids, sometimes without punctuation, sometimes only
inside a text. So an id consists of letters and digits only, with a fixed length and a recognizable shape:

    turn id        t2m9xq0c5k7v1b3n8d4f6      "t", 9 characters of time, 11 random
    tool-call id   callt2m9xq0c5k7v1b3n8d4f6n0   "call", the turn id, "n", the number of the call in its reply
"""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
_TIME_DIGITS = 9  # milliseconds since 1970 in base 36: enough until the year 5188
_CHANCE_DIGITS = 11  # 56 bits

_TURN_ID = re.compile(r"t[0-9a-z]{20}")
_MADE_FROM = re.compile(r"[a-z]{2,8}[_-]?(t[0-9a-z]{20})(?:n[0-9]+)?")


def _base36(number: int, digits: int) -> str:
    out = []
    for _ in range(0, digits, 2):
        number, remainder = divmod(number, 36 * 36)
        out.append(_PAIRS[remainder])
    return "".join(reversed(out))[-digits:]


def new_turn_id(now: float | None = None) -> str:
    """A new turn id; later ids sort later.

    >>> len(new_turn_id())
    21
    """
    milliseconds = int((time.time() if now is None else now) * 1000)
    return "t" + _base36(milliseconds, _TIME_DIGITS) + _base36(secrets.randbits(56), _CHANCE_DIGITS)


def tool_call_id(turn_id: str, number: int) -> str:
    """The id of the `number`-th tool call of a turn, in letters and digits only."""
    return f"call{turn_id}n{number}"


def turn_of(made_id: str) -> str | None:
    """The turn that a tool-call, reply or item id was made for; None when the id is not ours.

    >>> turn_of("callt00mijx3k2abcdefghijkn0")
    't00mijx3k2abcdefghijk'
    """
    if _TURN_ID.fullmatch(made_id):
        return made_id
    match = _MADE_FROM.fullmatch(made_id)
    return match.group(1) if match else None
