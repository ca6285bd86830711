"""A bound on the nesting of JSON: beyond it parsers and serialisers end in a RecursionError."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100
"""Lists and objects inside each other; tool definitions of real clients have a dozen."""


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects stand in each other more than `MAX_DEPTH` deep."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    return bool(level)


def loads(text: str) -> Any:
    """`json.loads`, with a ValueError for what is nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_too_deep(value):
        raise ValueError("nested too deeply")
    return value
