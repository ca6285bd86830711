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
from typing import Any, NamedTuple

PATH = Path(__file__).with_name("forms.toml")


class Evidence(NamedTuple):
    """One thing that speaks for a score: `Evidence(-1, "change request", "make it shorter")`."""

    score: int
    kind: str
    words: str


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
    tool_outage: re.Pattern[str]
    tool_error: re.Pattern[str]
    relayed: re.Pattern[str]
    told_accepted: re.Pattern[str]
    told_refused: re.Pattern[str]
    told_said: re.Pattern[str]
    reading_tool: re.Pattern[str]
    reader_error: re.Pattern[str]
    assent: frozenset[str]
    stop_words: frozenset[str]
    readers: frozenset[str]
    wishes: tuple[Wish, ...]


@functools.cache
def forms() -> Forms:
    """The forms of English. Read once."""
    table = tomllib.loads(PATH.read_text(encoding="utf-8"))
    words: Mapping[str, str] = table["vocabulary"]
    told = table["told"]
    values: dict[str, Any] = {
        **{name: _compiled(listed, words) for name, listed in table["forms"].items()},
        **{name: re.compile(_alternatives(listed)) for name, listed in table["openings"].items()},
        **{name: frozenset(table[name].split()) for name in ("assent", "stop_words", "readers")},
        "reading_tool": re.compile(f"(?:^|[^a-z])(?:{table['reading_tools']})(?:[^a-z]|$)"),
        "reader_error": re.compile(f"(?:{table['readers'].replace(' ', '|')}|(?:ba|z|da)?sh): [^\\n]{{1,300}}"),
        "wishes": tuple(_wish(entry, words) for entry in table["wishes"]),
    }
    for name in ("accepted", "refused", "said"):
        values[f"told_{name}"] = re.compile(f"{told['adverbs']}(?:{_alternatives(told[name])})")
    return Forms(**values)


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
