"""Defines personas: simulated users with a hidden preference that a program can check.

    reply ─▶ Persona.keeps ─▶ rule kept or broken          Persona.wish ─▶ phrases.complain ─▶ the complaint if broken

The three rules are those of the OpenClaw-RL paper's second version: replies to a student contain no bold, no numbered
list and no boxed answer; replies to a teaching assistant have a minimum number of tokens; replies to a teacher praise.
Each persona uses its own application with a neutral system prompt. The prompt does not mention style, but tells a model
who is asking, so that one model can learn several hidden preferences.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from openclaw_test.people.styles import is_plain
from slime.errors import ConfigError, nearest

_PRAISE = re.compile(
    r"\b(?:great|excellent|wonderful|fantastic|awesome|amazing|impressive|brilliant|well done|nicely done|bravo|proud|"
    r"(?:good|nice|clever|smart) (?:job|work|question|thinking|effort|start|idea)|keep (?:it|going) up)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An assistant's reply.

    >>> Reply("It comes to 7 apples.", num_tokens=8)

    Attributes:
        num_tokens: completion tokens as counted by the server, stop token included.
        tool_calls: (name, arguments as JSON text) of each call.
        first_token_s: time to first token in seconds; None unless the reply was streamed and has text.
    """

    text: str
    num_tokens: int
    tool_calls: tuple[tuple[str, str], ...] = ()
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Persona:
    """A simulated user's hidden preference.

    Attributes:
        rule: the rule in words, for tables.
        keeps: whether a reply keeps the rule.
        wish: the entry of `phrases.WISHES` to complain with when it does not.
        system: the system prompt of the persona's application; empty for none.
    """

    name: str
    rule: str
    keeps: Callable[[Reply], bool]
    wish: str
    system: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Reply lengths suited to a model.

    Attributes:
        min_tokens: the minimum that satisfies a teaching assistant.
        max_tokens: the token limit of a reply.
    """

    min_tokens: int = 100
    max_tokens: int = 512


TINY = Scale(min_tokens=34, max_tokens=64)
"""The tiny model's detailed replies have at least 35 tokens, stop token included; its other replies at most 33."""


def scale_of(model_dir: str) -> Scale:
    """The scale of a model: `TINY` for the tiny model and its checkpoints, else the paper's 100 tokens."""
    return TINY if model_dir and (Path(model_dir) / "tiny_model.json").exists() else Scale()


def is_praising(text: str) -> bool:
    """Whether a reply praises the user.

    >>> is_praising("Well done for asking! That makes 7 apples.")
    True
    """
    return _PRAISE.search(text) is not None


def personas(min_tokens: int) -> Mapping[str, Persona]:
    """The paper's three personas, by name."""
    return {
        "student": Persona(
            "student",
            "no bold, no numbered list, no boxed answer",
            lambda reply: is_plain(reply.text),
            wish="plain",
            system="You help people with sums.",
        ),
        "ta": Persona(
            "ta",
            f"at least {min_tokens} tokens",
            lambda reply: reply.num_tokens >= min_tokens,
            wish="detailed",
            system="You are a helpful math tutor.",
        ),
        "teacher": Persona(
            "teacher",
            "contains praise",
            lambda reply: is_praising(reply.text),
            wish="praising",
            system="You are a helpful assistant.",
        ),
    }


PLAIN = dataclasses.replace(personas(TINY.min_tokens)["student"], system="")
"""The demo's persona: a student without a system prompt."""


def chosen(name: str, min_tokens: int) -> list[Persona]:
    """The personas that `--persona` selects: one name, several with commas, or `all`."""
    known = personas(min_tokens)
    names = list(known) if name == "all" else [part.strip() for part in name.split(",") if part.strip()]
    for part in names:
        if part not in known:
            raise ConfigError(f"--persona: unknown {part!r}; choose from {', '.join(known)}, all{nearest(part, known)}")
    if not names:
        raise ConfigError(f"--persona is empty; choose from {', '.join(known)}, all")
    return [known[part] for part in names]


def drifted(persona: Persona, target: Persona) -> Persona:
    """A persona after a preference drift: the same application with the target's rule."""
    return dataclasses.replace(target, name=f"{persona.name}→{target.name}", system=persona.system)
