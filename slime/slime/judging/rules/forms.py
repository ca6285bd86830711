"""The forms of `forms.toml` as regular expressions, read when the first reaction is judged.

forms.toml ─▶ vocabulary put in for its names ─▶ Forms: one pattern a kind of reaction, and one a wish
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("forms.toml")


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish about how a reply is put.

    Attributes:
        instruction: what is said to a teacher.
        covers: wishes that need not be said beside it.
    """

    name: str
    pattern: re.Pattern[str]
    instruction: str
    covers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forms:
    """One pattern a kind of reaction, for a lower-case clause; `forms.toml` says what each kind is.

    Attributes:
        assent: words of consent.
        wishes: the plainest first.
    """

    content: re.Pattern[str]
    thanks: re.Pattern[str]
    praise: re.Pattern[str]
    moving_on: re.Pattern[str]
    rejection: re.Pattern[str]
    redo: re.Pattern[str]
    change: re.Pattern[str]
    clarify: re.Pattern[str]
    denial: re.Pattern[str]
    ask: re.Pattern[str]
    set_phrase: re.Pattern[str]
    quoted: re.Pattern[str]
    tool_error: re.Pattern[str]
    tool_outage: re.Pattern[str]
    assent: frozenset[str]
    wishes: tuple[Wish, ...]


@functools.cache
def forms() -> Forms:
    """The forms of English. Read once."""
    table = tomllib.loads(PATH.read_text(encoding="utf-8"))
    words: Mapping[str, str] = table["vocabulary"]
    patterns = {name: _compiled(listed, words) for name, listed in table["forms"].items() if name != "tool_error"}
    patterns["tool_error"] = re.compile(_alternatives(table["forms"]["tool_error"]))
    wishes = tuple(_wish(entry, words) for entry in table["wishes"])
    return Forms(**patterns, assent=frozenset(table["assent"].split()), wishes=wishes)


def _wish(entry: Mapping[str, Any], words: Mapping[str, str]) -> Wish:
    pattern = _compiled(entry["forms"], words)
    return Wish(entry["name"], pattern, entry["instruction"], tuple(entry.get("covers", ())))


def _alternatives(listed: str) -> str:
    return "|".join(f"(?:{form})" for form in listed.strip().splitlines())


def _compiled(listed: str, words: Mapping[str, str]) -> re.Pattern[str]:
    """One pattern that finds any of the forms."""
    pattern = _alternatives(listed).replace(" ... ", r" (?:\S+ ){0,3}")
    for name, alternatives in words.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{alternatives})")
    return re.compile(rf"(?<!\w)(?:{pattern})(?!\w)")
