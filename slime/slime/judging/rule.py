"""The rule judge: reads a reaction without any model. The default where there is none to ask.

    next state ─┬─ user's words ─▶ clauses ─▶ complaint ≻ thanks, praise ≻ goes on ≻ lexicon ─┬─▶ −1, 0, 1
                └─ tool results ─▶ error ≻ stated success ≻ nothing ──────────────────────────┘

What the user says outweighs what a tool returned, and a complaint outweighs thanks: "thanks, but shorter" is a
change request. A tool's plain output is no evidence, for otherwise every call that ran would be reinforced.
Feelings that no form of `phrases` names are left to a maintained lexicon (TextBlob's, from Pattern).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from textblob.en import sentiment

from slime.judging import phrases
from slime.judging.prompts import message_text, shorten
from slime.types import Message, Turn, Verdict

MAX_CHARS = 4000
"""How much of one message is read: reactions stand at its ends, and patterns must not meet megabytes."""

FEELING = 0.3
"""Polarity (−1..1) from which on the lexicon is believed."""

REPEATED = 0.6
"""Share of its content words that makes a request the earlier one in other words."""

EARLIER_ASKS = 3
"""How many of the user's last messages a request may repeat."""

ASK_WORDS = 3
"""A request has at least as many words; what is shorter is an exclamation."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that speaks for a score: `Evidence(-1, "change request", "make it shorter")`."""

    score: int
    kind: str
    words: str


class RuleJudge:
    """Scores a turn by the forms of its next state; never fails."""

    async def judge(self, turn: Turn) -> Verdict:
        if not turn.next_state:
            return Verdict(None, judge="rule", reason="nothing followed the reply")
        evidence = weigh(turn.next_state, _texts(turn.messages, "user"), message_text(turn.reply))
        details = {"evidence": [(item.score, item.kind, item.words[:200]) for item in evidence]}
        if not evidence:
            return Verdict(0.0, votes=(0.0,), judge="rule", reason="nothing speaks for or against it", details=details)
        first = evidence[0]
        score = float(first.score)
        reason = f"{first.kind}: {first.words[:80]}"
        return Verdict(score, votes=(score,), judge="rule", reason=reason, details=details)


def weigh(next_state: Sequence[Message], asked: Sequence[str], reply: str) -> list[Evidence]:
    """The evidence in a next state, the weightiest first; `asked` is what the user had said before the reply."""
    said = [item for text in _texts(next_state, "user") for item in read_words(text, asked, reply)]
    returned = [item for text in _texts(next_state, "tool", "function") for item in read_tool_result(text)]
    return sorted(said, key=_bad_news_first) + sorted(returned, key=_bad_news_first)


def read_words(text: str, asked: Sequence[str] = (), reply: str = "") -> Iterator[Evidence]:
    """What a user's message says about the reply before it.

    >>> [(item.score, item.kind) for item in read_words("Thanks! But make it shorter.")]
    [(1, 'thanks'), (-1, 'change request')]
    """
    if repeats(text, asked):
        yield Evidence(-1, "the same request again", text)
        return
    topic = _content_words(" ".join((*asked[-1:], reply)))
    is_open = True  # nothing has been said about the reply yet
    denial: Evidence | None = None
    for clause in clauses(text):
        found = _read_clause(clause)
        if found is not None:
            is_open = False
            yield found
            if found.kind == "goes on":
                return  # what follows is about the next task
        elif phrases.CLARIFY.search(clause):
            return
        elif _is_ask(clause):
            if _content_words(clause) & topic:
                continue  # a question about the reply leaves it open how it was received
            if is_open:
                yield Evidence(1, "asks something else", clause)
            return
        elif phrases.DENIAL.search(clause):
            denial = denial or Evidence(-1, "denial", clause)
        elif abs(feeling := sentiment(clause)[0]) >= FEELING:
            is_open = False
            yield Evidence(1 if feeling > 0 else -1, f"feeling {feeling:+.1f}", clause)
    if is_open and denial is not None:
        yield denial


def _read_clause(clause: str) -> Evidence | None:
    """The weightiest form in one clause."""
    rest = phrases.CONTENT.sub(" ", clause)
    for kind, pattern in (("correction", phrases.REDO), ("change request", phrases.CHANGE)):
        if match := pattern.search(rest):
            return Evidence(-1, kind, match.group().strip())
    if match := phrases.MOVING_ON.search(rest):
        return Evidence(1, "goes on", match.group().strip())
    if match := phrases.REJECTION.search(rest):
        return Evidence(-1, "rejection", match.group().strip())
    if rest != clause:
        return Evidence(1, "content", clause)
    for kind, pattern in (("thanks", phrases.THANKS), ("praise", phrases.PRAISE)):
        if match := pattern.search(rest):
            return Evidence(1, kind, match.group().strip())
    return None


def _is_ask(clause: str) -> bool:
    asks = clause.endswith("?") or phrases.ASK.search(clause) is not None
    return asks and len(clause.split()) >= ASK_WORDS


def clauses(text: str) -> Iterator[str]:
    """A message in lower-case pieces that each say one thing; quoted lines and the marks of code are left out."""
    text = shorten(text, MAX_CHARS).lower().replace("’", "'").replace("```", "\n")
    text = re.sub(r"^\s*>.*$", "", text, flags=re.MULTILINE)
    for piece in re.split(r"(?<=[?])|[.!;\n]+(?=\s|$)|:\s|,? \b(?:but|however|though|although|except)\b|\.{2,}", text):
        clause = re.sub(r"\s+", " ", re.sub(r"[^\w\s'?/=\[\]-]", " ", piece)).strip()
        if clause:
            yield clause


_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the of for to in on at with and or is are was were be me my i you your it this that do does did can "
        "could would will please what which how s",
    )
)
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS)}


def repeats(text: str, asked: Sequence[str]) -> bool:
    """Whether a message asks again what was asked before: mostly the same content words, the same numbers."""
    words = _content_words(text)
    numbers = {word for word in words if word.isdigit()}
    for earlier in asked[-EARLIER_ASKS:]:
        before = _content_words(earlier)
        shared = len(words & before)
        same_numbers = numbers == {word for word in before if word.isdigit()}
        if shared >= 2 and same_numbers and shared >= REPEATED * len(words) and 2 * shared >= len(before):
            return True
    return False


def _content_words(text: str) -> set[str]:
    words = re.findall(r"\w+", shorten(text, MAX_CHARS).lower())
    return {_NUMBERS.get(word, word.removesuffix("s")) for word in words} - _STOP_WORDS


def read_tool_result(text: str) -> Iterator[Evidence]:
    """What a tool's result says about the call: an error the call caused, a stated success, or nothing.

    >>> list(read_tool_result("bash: pytset: command not found"))
    [Evidence(score=-1, kind='tool error', words='command not found')]
    """
    facts = _read_json(text)
    plain = shorten(text, MAX_CHARS).lower().replace("’", "'") if facts is None else facts.words
    if phrases.TOOL_OUTAGE.search(plain):
        return
    if facts is not None and facts.score:
        yield facts
    elif match := phrases.TOOL_ERROR.search(plain):
        yield Evidence(-1, "tool error", match.group().strip())
    elif match := phrases.TOOL_SUCCESS.search(plain):
        yield Evidence(1, "tool success", match.group().strip())


_GOOD_STATUS = frozenset({"ok", "success", "succeeded", "sent", "done", "completed", "created", "updated", "passed"})
_BAD_STATUS = frozenset({"error", "failed", "failure", "invalid", "denied", "not_found"})


def _read_json(text: str) -> Evidence | None:
    """The verdict of a JSON object's customary keys, with all its values as words; None for anything else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    words = shorten(" ".join(str(item) for item in value.values()), MAX_CHARS).lower()
    status = str(value.get("status", "")).lower()
    code = next((value[key] for key in ("exit_code", "exitCode", "returncode", "code") if key in value), None)
    truths = {value.get(key) for key in ("success", "ok") if isinstance(value.get(key), bool)}
    if value.get("error") or value.get("is_error") is True or value.get("isError") is True:
        return Evidence(-1, "tool error", words)
    if False in truths or status in _BAD_STATUS or _is_failure_code(code):
        return Evidence(-1, "tool error", words)
    if True in truths or status in _GOOD_STATUS:
        return Evidence(1, "tool success", words)
    return Evidence(0, "tool output", "")


def _is_failure_code(code: Any) -> bool:
    return isinstance(code, int) and not isinstance(code, bool) and code not in (0, 200, 201, 202, 204)


def _texts(messages: Iterable[Message], *roles: str) -> list[str]:
    return [message_text(message) for message in messages if message.get("role") in roles]


def _bad_news_first(evidence: Evidence) -> int:
    return evidence.score
