"""Who may sit before a model: a persona has a rule that a program can check, and hardly ever says it.

    reply ─▶ Persona.keeps ─▶ the rule held, or not          Persona.wish ─▶ phrases.complain ─▶ what they say if not

The three rules are those of the OpenClaw-RL paper's second version: a student's homework shows no bold, no numbered
list and no boxed answer; a teaching assistant's is explained in at least so many tokens; a teacher's praises. Each
persona comes through an application of its own, with its own neutral system prompt. That prompt says nothing about
style, yet tells one model who is asking, so that it can serve several hidden preferences at once.
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
    """What an assistant answered.

    >>> Reply("It comes to 7 apples.", num_tokens=8)

    Attributes:
        num_tokens: of the whole reply as the server counts them, the stop token included.
        tool_calls: name and arguments (JSON text) of each.
        first_token_s: from sending the request to the first text; None unless the reply was streamed and has any.
    """

    text: str
    num_tokens: int
    tool_calls: tuple[tuple[str, str], ...] = ()
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Persona:
    """A hidden preference with a face.

    Attributes:
        rule: the rule in words, for tables.
        keeps: whether a reply holds to it.
        wish: the name in `phrases.WISHES` of what to ask for when it does not.
        system: the system prompt of the application they use; empty for none.
    """

    name: str
    rule: str
    keeps: Callable[[Reply], bool]
    wish: str
    system: str


@dataclass(frozen=True, slots=True)
class Scale:
    """What is long for a model.

    Attributes:
        min_tokens: the least a teaching assistant is content with.
        max_tokens: where replies are cut.
    """

    min_tokens: int = 100
    max_tokens: int = 512


TINY = Scale(min_tokens=34, max_tokens=64)
"""The tiny model's detailed replies take 35 tokens and more, the stop token included, its others 33 at most."""


def scale_of(model_dir: str) -> Scale:
    """The tiny model, and whatever was trained from it, writes short; any other model is taken at the paper's 100."""
    return TINY if model_dir and (Path(model_dir) / "tiny_model.json").exists() else Scale()


def is_praising(text: str) -> bool:
    """Whether a reply praises whoever asked.

    >>> is_praising("Well done for asking! That makes 7 apples.")
    True
    """
    return _PRAISE.search(text) is not None


def personas(min_tokens: int) -> Mapping[str, Persona]:
    """The three of the paper, by name."""
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
"""The demo's: a student without an application of their own."""


def chosen(name: str, min_tokens: int) -> list[Persona]:
    """The personas that `--persona` names: one of them, several with commas, or `all`."""
    known = personas(min_tokens)
    names = list(known) if name == "all" else [part.strip() for part in name.split(",") if part.strip()]
    for part in names:
        if part not in known:
            raise ConfigError(f"--persona: no {part!r} among {', '.join(known)}, all{nearest(part, known)}")
    if not names:
        raise ConfigError(f"--persona: name one of {', '.join(known)}, or all")
    return [known[part] for part in names]


def drifted(persona: Persona, target: Persona) -> Persona:
    """Somebody whose taste changes: still the same application, from now on the target's rule."""
    return dataclasses.replace(target, name=f"{persona.name}→{target.name}", system=persona.system)
