"""The `coding` suite: small functions to write, drawn from a seed and checked by running them on test cases.

    seed ─▶ CodingTask(prompt, cases, expected) ─▶ reply ─▶ the source in it ─▶ sandbox ─▶ passed, or why not

Every task carries a solution, which defines the expected results: every task is solvable, and a scripted engine that
returns the solutions scores 1.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_test.suites.sandbox import call_function

_NUM_CASES = 6
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CodingTask:
    """One function to write.

    Attributes:
        cases: arguments of the checking calls.
        expected: the result of each call.
        solution: source of a correct function.
    """

    prompt: str
    function: str
    cases: tuple[tuple[Any, ...], ...]
    expected: tuple[Any, ...]
    solution: str

    def failure(self, reply: str) -> str:
        """Why a reply fails the task; empty if it passes. Runs the code, which may take some seconds."""
        source = source_in(reply)
        if f"def {self.function}" not in source:
            return "no such function"
        outcome = call_function(source, self.function, self.cases)
        if outcome.results is None:
            return outcome.failure
        # As JSON, where true is not 1 and 2.0 is not 2.
        return "" if json.dumps(outcome.results) == json.dumps(self.expected) else "wrong result"


def source_in(reply: str) -> str:
    """The code of a reply: its fenced blocks joined, or the whole reply if it has none."""
    blocks = _BLOCK.findall(reply)
    return "\n".join(blocks) if blocks else reply


Drawn = tuple[str, str, Callable[..., Any], str, list[tuple[Any, ...]]]
"""(function name, description, reference implementation, its source, cases)."""


def _scale(rng: random.Random) -> Drawn:
    k, c = rng.randint(2, 9), rng.randint(1, 20)
    what = f"takes a number x and returns {k} times x plus {c}"
    return "scale", what, lambda x: k * x + c, f"def scale(x):\n    return {k} * x + {c}\n", _ints(rng)


def _multiples(rng: random.Random) -> Drawn:
    k = rng.randint(2, 7)
    what = f"takes a list of whole numbers and returns how many of them can be divided by {k}"
    source = f"def multiples(numbers):\n    return sum(1 for n in numbers if n % {k} == 0)\n"
    return "multiples", what, lambda numbers: sum(n % k == 0 for n in numbers), source, _lists(rng)


def _above(rng: random.Random) -> Drawn:
    k = rng.randint(-3, 6)
    what = f"takes a list of whole numbers and returns those greater than {k}, in the same order"
    source = f"def above(numbers):\n    return [n for n in numbers if n > {k}]\n"
    return "above", what, lambda numbers: [n for n in numbers if n > k], source, _lists(rng)


def _clamp(rng: random.Random) -> Drawn:
    low = rng.randint(-5, 0)
    high = low + rng.randint(3, 12)
    what = f"takes a whole number and returns it, but at least {low} and at most {high}"
    source = f"def clamp(x):\n    return max({low}, min({high}, x))\n"
    return "clamp", what, lambda x: max(low, min(high, x)), source, _ints(rng)


def _count_letter(rng: random.Random) -> Drawn:
    letter = rng.choice("aeinorst")
    what = f"takes a text and returns how often the letter {letter!r} occurs in it"
    source = f"def count_letter(text):\n    return text.count({letter!r})\n"
    return "count_letter", what, lambda text: text.count(letter), source, _texts(rng)


def _long_words(rng: random.Random) -> Drawn:
    k = rng.randint(3, 6)
    what = f"takes a text and returns a list of its words that have more than {k} letters"
    source = f"def long_words(text):\n    return [word for word in text.split() if len(word) > {k}]\n"
    return "long_words", what, lambda text: [w for w in text.split() if len(w) > k], source, _texts(rng)


def _is_near(rng: random.Random) -> Drawn:
    k, d = rng.randint(-4, 8), rng.randint(1, 4)
    what = f"takes a whole number and returns whether it differs from {k} by at most {d}"
    source = f"def is_near(x):\n    return abs(x - ({k})) <= {d}\n"
    return "is_near", what, lambda x: abs(x - k) <= d, source, _ints(rng)


_FAMILIES = (_scale, _multiples, _above, _clamp, _count_letter, _long_words, _is_near)
_WORDS = ("stone", "river", "an", "orange", "tree", "sits", "on", "a", "train", "to", "nowhere", "in", "rain")


def _ints(rng: random.Random) -> list[tuple[Any, ...]]:
    return [(value,) for value in rng.sample(range(-12, 20), _NUM_CASES)]


def _lists(rng: random.Random) -> list[tuple[Any, ...]]:
    return [([rng.randint(-10, 20) for _ in range(rng.randint(0, 8))],) for _ in range(_NUM_CASES)]


def _texts(rng: random.Random) -> list[tuple[Any, ...]]:
    return [(" ".join(rng.choices(_WORDS, k=rng.randint(0, 8))),) for _ in range(_NUM_CASES)]


def coding_tasks(num_tasks: int, seed: int) -> list[CodingTask]:
    """Tasks of all families in turn; deterministic per seed."""
    rng = random.Random(f"coding {seed}")
    return [_task(*_FAMILIES[number % len(_FAMILIES)](rng)) for number in range(num_tasks)]


def _task(
    function: str, what: str, truth: Callable[..., Any], solution: str, cases: Sequence[tuple[Any, ...]]
) -> CodingTask:
    prompt = f"Write a Python function `{function}` that {what}. Answer with the code alone."
    return CodingTask(prompt, function, tuple(cases), tuple(truth(*case) for case in cases), solution)
