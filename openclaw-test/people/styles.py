"""How a reply is written: its format and its tone; writing one, and telling from the text alone which rules it keeps.

`write_reply(problem, style, rng)` makes the texts the tiny model learns from; `RULES` are the preferences of
the simulated people, each a plain test on the reply's text that knows nothing of how it was made.

The format shows in the first words of a reply (after an opener, in some tones), and the number that is the
answer is the last one, so that `problems.final_answer` can read any style.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from openclaw_test.people.problems import Problem

Format = Literal["plain", "bold", "list", "boxed"]
Tone = Literal["neutral", "short", "long", "friendly", "praising"]

FORMATS: tuple[Format, ...] = ("plain", "bold", "list", "boxed")
TONES: tuple[Tone, ...] = ("neutral", "short", "long", "friendly", "praising")


@dataclass(frozen=True, slots=True)
class Style:
    """One way to write a reply: `Style("bold", "friendly")` → "Happy to help! **Answer:** 7 apples."."""

    format: Format
    tone: Tone


FORMAT_PRIOR: Mapping[Format, float] = {"plain": 0.06, "bold": 0.34, "list": 0.30, "boxed": 0.30}
"""How often the untrained model chooses a format when nobody asks; `plain` is rare, so that there is much to learn."""

TONE_PRIOR: Mapping[Tone, float] = {"neutral": 0.76, "short": 0.06, "long": 0.06, "friendly": 0.06, "praising": 0.06}


def random_style(rng: random.Random) -> Style:
    """A style as the untrained model would choose it."""
    [format_] = rng.choices(FORMATS, [FORMAT_PRIOR[f] for f in FORMATS])
    [tone] = rng.choices(TONES, [TONE_PRIOR[t] for t in TONES])
    return Style(format_, tone)


_BODIES: Mapping[Format, tuple[str, ...]] = {
    "plain": ("That makes {n} {things}.", "So there are {n} {things}.", "It comes to {n} {things}."),
    "bold": ("**Answer:** {n} {things}.", "**{n} {things}** in all.", "The answer is **{n} {things}**."),
    "boxed": (
        "$\\boxed{{{n}}}$ {things} in all.",
        "The answer is $\\boxed{{{n}}}$.",
        "We get $\\boxed{{{n}}}$ {things}.",
    ),
    "list": (
        "1. We start with {a}.\n2. {Step}.\n3. We get {n} {things}.",
        "1. {a} {things} first.\n2. {Step}.\n3. Answer: {n}.",
    ),
}
_SHORT_BODIES: Mapping[Format, str] = {
    "plain": "Just {n}.",
    "bold": "**{n}**",
    "boxed": "$\\boxed{{{n}}}$",
    "list": "1. {n}",
}
_STEPS = {"plus": "we add {b}", "minus": "we take away {b}", "times": "we take it {b} times"}
_EXPLANATIONS = {
    "plus": "We start with {a} {things} and put {b} more to them, and counting all of them together gives {n}.",
    "minus": "We start with {a} {things} and take {b} of them away, and counting the rest of them gives {n}.",
    "times": "We have {a} groups with {b} {things} in each of them, and counting all of them together gives {n}.",
}
_PATIENT = "Let us see."
_FRIENDLY = ("Happy to help!", "Of course, my friend!", "Sure, with pleasure!")
_PRAISING = ("Great question!", "Well done for asking!", "You are doing great!")


def write_reply(problem: Problem, style: Style, rng: random.Random) -> str:
    """An answer to the problem in the style, in one of its wordings."""
    body = _SHORT_BODIES[style.format] if style.tone == "short" else rng.choice(_BODIES[style.format])
    step = _STEPS[problem.operation].format(b=problem.b)
    values = {"a": problem.a, "b": problem.b, "n": problem.answer, "things": problem.things, "Step": step.capitalize()}
    text = body.format(**values)
    gap = "\n" if style.format == "list" else " "
    match style.tone:
        case "long":
            return f"{_PATIENT}{gap}{text}{gap}{_EXPLANATIONS[problem.operation].format(**values)}"
        case "friendly":
            return f"{rng.choice(_FRIENDLY)}{gap}{text}"
        case "praising":
            return f"{rng.choice(_PRAISING)}{gap}{text}"
        case _:
            return text


def has_bold(text: str) -> bool:
    return "**" in text


def has_numbered_list(text: str) -> bool:
    return re.search(r"^\s*\d+[.)]\s", text, re.MULTILINE) is not None


def has_box(text: str) -> bool:
    return "\\boxed" in text


def is_plain(text: str) -> bool:
    """No bold, no numbered list, no boxed answer: nothing that makes homework look machine-written."""
    return bool(text.strip()) and not (has_bold(text) or has_numbered_list(text) or has_box(text))


def is_short(text: str) -> bool:
    return 0 < len(text.split()) <= 2


def is_detailed(text: str) -> bool:
    return len(text.split()) >= 22


def is_friendly(text: str) -> bool:
    return any(words in text for words in ("Happy to help", "my friend", "with pleasure"))


def is_praising(text: str) -> bool:
    return any(words in text for words in ("Great question", "Well done", "doing great"))


RULES: Mapping[str, Callable[[str], bool]] = {
    "plain": is_plain,
    "short": is_short,
    "detailed": is_detailed,
    "friendly": is_friendly,
    "praising": is_praising,
}
"""The preferences people may hold, by name: whether a reply's text satisfies them."""
