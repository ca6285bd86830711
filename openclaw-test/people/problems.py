"""Small word problems with one whole number as their answer, and the split into known and held-out ones.

`random_problem(rng, split)` → `Problem` → its `text` is asked, `final_answer(reply)` is compared with its `answer`.

What is held out is a sum about certain things, in every wording: "3 + 4 apples" may be held out while "3 + 4 pens"
is not. So a model this small can know all the sums it needs, yet has never seen a held-out problem. The tiny model's
corpus and the people who train it draw from the `train` split, the scores from the `held_out` one.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "held_out"]
Operation = Literal["plus", "minus", "times"]

NAMES = ("Mia", "Tom", "Anna", "Ben", "Lena", "Max", "Zoe", "Paul", "Emma", "Noah")
THINGS = (
    *("apples", "pears", "pens", "books", "cards", "coins", "shells", "stamps"),
    *("balls", "cups", "eggs", "keys", "nuts", "stones", "tickets", "toys"),
)

_STORIES: dict[Operation, tuple[str, ...]] = {
    "plus": (
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
        "There are {a} {things} on the table and {b} on the floor. How many {things} are there?",
        "{name} finds {a} {things} and {other} finds {b}. How many {things} do they have together?",
    ),
    "minus": (
        "{name} has {a} {things} and gives {b} to {other}. How many {things} does {name} have now?",
        "There are {a} {things} on the table. {name} takes {b} of them. How many {things} are on the table now?",
        "{name} needs {a} {things} and has {b}. How many {things} does {name} still need?",
    ),
    "times": (
        "There are {a} rows with {b} {things} each. How many {things} are there?",
        "{name} buys {a} bags with {b} {things} in each bag. How many {things} does {name} buy?",
    ),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One sum in one story.

    >>> Problem("plus", 3, 4, "apples", "Mia has 3 apples and gets 4 more. How many apples does Mia have now?").answer
    7
    """

    operation: Operation
    a: int
    b: int
    things: str
    text: str

    @property
    def answer(self) -> int:
        match self.operation:
            case "plus":
                return self.a + self.b
            case "minus":
                return self.a - self.b
            case "times":
                return self.a * self.b


def is_held_out(operation: Operation, a: int, b: int, things: str) -> bool:
    """Whether a sum about these things belongs to the held-out split: about one in six does, evenly spread."""
    return (a + 2 * b + 3 * THINGS.index(things) + len(operation)) % 6 == 0


def random_problem(rng: random.Random, split: Split) -> Problem:
    """A problem of the split: operation first (so that each is as frequent), then numbers, things, story and names."""
    operation = rng.choice(_OPERATIONS)
    while True:
        a, b = rng.choice(_SUMS[operation])
        things = rng.choice(THINGS)
        if is_held_out(operation, a, b, things) == (split == "held_out"):
            break
    name, other = rng.sample(NAMES, 2)
    text = rng.choice(_STORIES[operation]).format(name=name, other=other, a=a, b=b, things=things)
    return Problem(operation, a, b, things, text)


def final_answer(reply: str) -> int | None:
    """The last whole number in a reply, whatever its style; None if there is none.

    >>> final_answer("1. We start with 3.\\n2. We add 4.\\n3. That makes **7** apples.")
    7
    """
    numbers = re.findall(r"\d+", reply)
    return int(numbers[-1]) if numbers else None


_SUMS: dict[Operation, list[tuple[int, int]]] = {
    "plus": [(a, b) for a in range(2, 9) for b in range(2, 9)],
    "minus": [(a, b) for a in range(4, 11) for b in range(2, 9) if a - b >= 2],
    "times": [(a, b) for a in range(2, 6) for b in range(2, 6)],
}
_OPERATIONS: tuple[Operation, ...] = tuple(_SUMS)
