"""Reading takes time in proportion to what is read, whatever was written to make it take more.

Every regular expression of the server and the judges is pumped: with each of its own beginnings, and with what its
repetitions repeat, again and again. One that goes back over what it has read takes four times as long for twice as
much; none may. The patterns are collected from the modules and their sources, so that a new one cannot escape.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest
import slime.chat
import slime.judging
from talking import CHAT, assistant, user

import openclaw
from openclaw.conversations.index import ConversationIndex
from openclaw.replay import as_recorded
from openclaw.requests.kinds import kind_of
from openclaw.requests.plain_text import plain_user_text, summary_core, text_lines
from openclaw.requests.reading import Reading
from openclaw.requests.wire_formats import read_request

PACKAGES = (openclaw, slime.chat, slime.judging)
ENOUGH_S = 0.002
"""A run that takes this long can be compared with one of twice the size."""
LARGEST = 1 << 16
MOST = 10.0
"""Four times the text may take so much longer: 4 when each character is looked at as often, 16 when each with each."""
MAKING = {"re.compile", "re.search", "re.match", "re.fullmatch", "re.sub", "re.findall", "re.finditer", "re.split"}
MADE_OF_PARTS = {
    "slime.chat.rendering",  # an alternation of a tokenizer's control tokens
    "slime.judging.rules.forms",  # alternations of phrases, of a data file
}


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name not in ("openclaw.server_main", "openclaw.__main__"):
                yield importlib.import_module(found.name)


def patterns() -> dict[str, re.Pattern[str]]:
    found: dict[str, re.Pattern[str]] = {}
    for module in modules():
        for name, value in (*vars(module).items(), *_read_when_needed(module)):
            for number, pattern in enumerate(_patterns_in(value, depth=3)):
                found[f"{module.__name__}.{name}[{number}]"] = pattern
        seen = {pattern.pattern for pattern in found.values()}
        for call in _calls_of_re(module):
            if (written := _written_out(call)) is not None and written not in seen:
                found[f"{module.__name__}:{call.lineno}:{ast.unparse(call.func)}"] = re.compile(written)
    return {name: pattern for name, pattern in found.items() if isinstance(pattern.pattern, str)}


def _read_when_needed(module: ModuleType) -> Iterator[tuple[str, object]]:
    """What the module's cached functions without arguments give: patterns that are not made on import."""
    for value in vars(module).values():
        if hasattr(value, "cache_info") and value.__module__ == module.__name__ and not signature(value).parameters:
            made = value()
            yield from ((field.name, getattr(made, field.name)) for field in fields(made))


def _calls_of_re(module: ModuleType) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKING:
            yield node


def _written_out(call: ast.Call) -> str | None:
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _patterns_in(value: object, depth: int) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, dict):
        for entry in (*value.keys(), *value.values()):
            yield from _patterns_in(entry, depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from _patterns_in(entry, depth - 1)
    elif depth and isinstance(value, type) and value.__module__.startswith(("openclaw", "slime")):
        for entry in vars(value).values():
            yield from _patterns_in(entry, depth - 1)
    elif depth and hasattr(type(value), "__dataclass_fields__"):
        for field in type(value).__dataclass_fields__:
            yield from _patterns_in(getattr(value, field, None), depth - 1)


# ── what a pattern is pumped with ────────────────────────────────────────────────────────────────────────────────────

_OF_CATEGORY = {
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_DIGIT: "7",
    sre.CATEGORY_WORD: "w",
    sre.CATEGORY_NOT_SPACE: "s",
    sre.CATEGORY_NOT_DIGIT: "d",
    sre.CATEGORY_NOT_WORD: "-",
}


def pumps(pattern: re.Pattern[str]) -> list[str]:
    """What a hostile text repeats: beginnings of a match, bodies of repetitions, blanks and letters."""
    found = {" ", "\n", "w", "w ", "\n\nw"}
    for parts in _sequences(sre_parser.parse(pattern.pattern, pattern.flags)):
        samples = [_sample(part) for part in parts]
        found |= {"".join(samples[:count]) for count in range(1, len(samples) + 1)}
        found |= set(samples)
    return sorted({pump for pump in found if pump and len(pump) <= 200}, key=lambda pump: (len(pump), pump))[:40]


def _sequences(parsed: Any) -> Iterator[list[Any]]:
    """The pattern's sequence of parts, and those inside its groups, repetitions and alternatives."""
    parts = list(parsed)
    yield parts
    for operator, argument in parts:
        for inner in _inner(operator, argument):
            yield from _sequences(inner)


def _inner(operator: Any, argument: Any) -> list[Any]:
    if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return [argument[2]]
    if operator is sre.SUBPATTERN:
        return [argument[3]]
    if operator is sre.ATOMIC_GROUP:
        return [argument]
    if operator is sre.BRANCH:
        return list(argument[1])
    if operator in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    return []


def _sample(part: tuple[Any, Any]) -> str:
    """The shortest text that the part matches, roughly."""
    operator, argument = part
    if operator is sre.LITERAL:
        return chr(argument)
    if operator is sre.NOT_LITERAL:
        return "w" if argument != ord("w") else "v"
    if operator is sre.ANY:
        return "w"
    if operator is sre.IN:
        return _member(argument)
    if operator in (sre.AT, sre.ASSERT_NOT, sre.GROUPREF):
        return ""
    if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, _, body = argument
        return "".join(map(_sample, body)) * max(1, int(least))
    inner = _inner(operator, argument)
    return "".join(map(_sample, inner[0])) if inner else ""


def _member(members: list[Any]) -> str:
    operator, argument = members[0]
    if operator is sre.NEGATE:
        refused = {chr(argument) for operator, argument in members[1:] if operator is sre.LITERAL}
        return next(letter for letter in "ws7-" if letter not in refused)
    if operator is sre.RANGE:
        return chr(argument[0])
    return _OF_CATEGORY.get(argument, "w") if operator is sre.CATEGORY else chr(argument)


# ── how long it takes ────────────────────────────────────────────────────────────────────────────────────────────────


def growth(run: Callable[[str], object], pump: str, before: str = "", after: str = "") -> float:
    """How much longer four times the text takes, from a size on at which that can be measured; 0 when it is quick."""

    def seconds(size: int) -> float:
        text = before + pump * (size // len(pump) + 1) + after
        began = time.process_time()
        run(text)
        return time.process_time() - began

    size = 1024
    while seconds(size) < ENOUGH_S:
        size *= 4
        if size > LARGEST:
            return 0.0
    return min(seconds(4 * size) for _ in range(2)) / min(seconds(size) for _ in range(2))


def check_linear(
    run: Callable[[str], object], pump: str, before: str = "", after: str = "", what: str = "reading"
) -> None:
    """Four times the text takes four times as long, not sixteen; looked at again before it is believed."""
    for _ in range(3):
        if growth(run, pump, before, after) < MOST:
            return
    pytest.fail(f"{what}: time grows faster than the text does: {before[:20]!r} + {pump[:60]!r} × n + {after[:20]!r}")


PATTERNS = patterns()


def _uses(name: str) -> set[str]:
    """The methods that are called of a pattern, anywhere."""
    return set(re.findall(rf"\b{re.escape(name)}(?:\[[^\]]*\])?\.(\w+)", _sources()))


@functools.cache
def _sources() -> str:
    return "\n".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules())


@pytest.mark.slow
def test_every_pattern_reads_a_text_once() -> None:
    """Half a minute: some ninety patterns, forty pumps each, from a thousand characters to a quarter of a million."""
    for name, pattern in sorted(PATTERNS.items()):
        uses = _uses(name.rpartition(".")[2].partition("[")[0])
        is_anchored = name.endswith("match") or (bool(uses) and uses <= {"match", "fullmatch", "pattern"})

        def run(text: str, pattern: re.Pattern[str] = pattern, is_anchored: bool = is_anchored) -> object:
            return pattern.match(text) if is_anchored else deque(pattern.finditer(text), maxlen=0)

        for pump in pumps(pattern):
            check_linear(run, pump, after="\x00", what=name)


def test_the_pump_finds_what_goes_back_over_what_it_read() -> None:
    for quadratic in (r"<think>.*?</think>", r"^\s*user:", r"\n*Runtime: agent", r"\[\d{4}[^\]]*\] "):
        flags = re.DOTALL | re.MULTILINE
        pattern = re.compile(quadratic, flags)
        looks = (growth(pattern.findall, pump, after="\x00") for _ in range(3) for pump in pumps(pattern))
        assert any(found >= MOST for found in looks), quadratic  # one look may be blurred by a busy machine


def test_no_pattern_is_made_where_it_would_not_be_seen() -> None:
    """One that is put together inside a function is neither in its module nor in its source."""
    assert len(PATTERNS) > 20
    for module in modules():
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        tops = [top for top in tree.body if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        inside = {
            (node.lineno, node.col_offset) for top in tops for node in ast.walk(top) if isinstance(node, ast.Call)
        }
        hidden = [
            call.lineno
            for call in _calls_of_re(module)
            if (call.lineno, call.col_offset) in inside and _written_out(call) is None
        ]
        assert not hidden or module.__name__ in MADE_OF_PARTS, f"{module.__name__}, line {hidden}"


HOSTILE = (
    "\n",
    "<system-reminder>",
    "<system-reminder></system-reminder>",
    "<think>",
    "<think></think>",
    "Conversation info: ⟦openclaw:ctx⟧ ```json ",
    "Conversation info: ⟦openclaw:ctx⟧",
    "[Sat 2026-11-21 01:00",
    "Runtime: agent=a",
    "Runtime: agent=",
    "\nRuntime: agent=a | session=b",
    "<analysis>",
    "</summary>",
    "user: ",
    "'id': 'call1234' ",
    "summary history ",
)


@pytest.mark.parametrize("pump", HOSTILE)
def test_hostile_texts_are_read_in_proportion_to_their_length(pump: str) -> None:
    for read in (plain_user_text, text_lines, summary_core):
        check_linear(read, pump, before="a", after="b")
    check_linear(_place_user, pump, before="a", after="b")
    check_linear(_place_history, pump, before="a", after="b")


def _place_user(text: str) -> None:
    reading = Reading(read_request(CHAT, {"messages": [user(text)]}))
    kind_of(reading.request, has_our_replies=False)
    ConversationIndex().begin(as_recorded(CHAT, {}, {"messages": [user(text)]}))


def _place_history(text: str) -> None:
    messages = [user("Hi"), assistant(text), user("Go on")]
    ConversationIndex().begin(as_recorded(CHAT, {}, {"messages": messages}))


def test_a_reply_that_degenerates_is_taken_in_at_once() -> None:
    def finish(text: str) -> None:
        index = ConversationIndex()
        placement = index.begin(as_recorded(CHAT, {}, {"messages": [user("Hi")]}))
        index.finish(placement, assistant(text))

    for pump in ("<think>", "<think>\n", "\n", "<analysis>"):
        check_linear(finish, pump)


def test_one_message_of_a_megabyte_of_one_tag_is_read_within_a_second() -> None:
    began = time.process_time()
    for pump in HOSTILE:
        _place_user("a" + pump * (1_000_000 // len(pump)))
    assert time.process_time() - began < len(HOSTILE)
