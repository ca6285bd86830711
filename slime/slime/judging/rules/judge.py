"""The rule judge scores a reaction without a model: the default where no model is named.

    next state ─┬─ user's words ─▶ clauses ─▶ complaint ≻ thanks, praise ≻ goes on ≻ lexicon ─┬─▶ −1, 0, 1
                └─ tool results ─▶ a failure of the call, or nothing (`tool_results`) ────────┘

What the user says outweighs what a tool returned, and a complaint outweighs thanks: "thanks, but shorter" is a change
request. Only a person's own words are praise: neither what a tool printed, be it in a user's message ("Observation: …",
"the script says 'success'"), nor a word that the reply itself holds, which the person may have been asked to repeat,
nor a bare yes to a question that the reply ends with. Feelings that no
form of `forms.toml` names are left to a maintained lexicon (TextBlob's, from Pattern).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from textblob.en import sentiment

from slime.judging.llm.prompts import message_text, shorten
from slime.judging.rules.forms import Evidence, forms
from slime.judging.rules.narrated import narrated
from slime.judging.rules.tool_results import read_tool_result, relayed
from slime.messages import calls_of
from slime.types import Message, Turn, Verdict

MAX_CHARS = 4000
"""How much of one message is read: reactions stand at its ends, and patterns must not meet megabytes."""

FEELING = 0.3
"""Polarity (−1..1) from which on the lexicon is believed."""

REPEATED = 0.6
"""Share of its content words that makes a request the earlier one in other words."""

EARLIER_ASKS = 3
"""How many of the user's last messages a request may repeat."""

QUESTION_CHARS = 300
"""How near its end a reply's question has to stand for a bare yes to be the answer to it."""

MAX_MESSAGES = 32
"""How many messages of a next state are read: the first and the last."""

ASK_WORDS = 3
"""A request has at least as many words; what is shorter is an exclamation."""


class RuleJudge:
    """Scores a turn by the forms of its next state; never fails."""

    async def judge(self, turn: Turn) -> Verdict:
        if not turn.next_state:
            return Verdict(None, judge="rule", reason="nothing followed the reply")
        evidence = weigh(turn.next_state, asked_before(turn), turn.reply)
        details = {"evidence": [(item.score, item.kind, item.words[:200]) for item in evidence]}
        if not evidence:
            return Verdict(0.0, votes=(0.0,), judge="rule", reason="nothing speaks for or against it", details=details)
        first = evidence[0]
        score = float(first.score)
        reason = f"{first.kind}: {first.words[:80]}"
        return Verdict(score, votes=(score,), judge="rule", reason=reason, details=details)


def asked_before(turn: Turn) -> list[str]:
    """What the user had said last before the reply, in order."""
    users = (message for message in reversed(turn.messages) if message.get("role") == "user")
    return [message_text(message) for message in itertools.islice(users, EARLIER_ASKS)][::-1]


def weigh(next_state: Sequence[Message], asked: Sequence[str], reply: Message) -> list[Evidence]:
    """The evidence in a next state, the weightiest first; `asked` is what the user had said before the reply."""
    if len(next_state) > MAX_MESSAGES:
        next_state = (*next_state[: MAX_MESSAGES // 2], *next_state[-MAX_MESSAGES // 2 :])
    words = message_text(reply)
    users = [message_text(message) for message in next_state if message.get("role") == "user"]
    printed = {text: relayed(text) for text in users}
    said = [item for text in users if printed[text] is None for item in read_words(text, asked, words)]
    results = [message for message in next_state if message.get("role") in ("tool", "function")]
    results += [{"role": "tool", "content": text} for text in printed.values() if text is not None]
    calls = _calls_by_id(reply)
    found = [read_tool_result(message, calls.get(str(message.get("tool_call_id")))) for message in results]
    failed = [item for item in found if item is not None]
    return sorted(said, key=_bad_news_first) + failed


def _calls_by_id(reply: Message) -> dict[str, tuple[str, str]]:
    ids = [str(call.get("id")) for call in reply.get("tool_calls") or () if isinstance(call, dict)]
    calls = calls_of(reply)
    return dict(zip(ids, calls, strict=True)) if len(ids) == len(calls) else {}


def read_words(text: str, asked: Sequence[str] = (), reply: str = "") -> Iterator[Evidence]:
    """What a user's message says about the reply before it.

    >>> [(item.score, item.kind) for item in read_words("Thanks! But make it shorter.")]
    [(1, 'thanks'), (-1, 'change request')]
    """
    tale = narrated(text)
    if tale is not None:
        for part in tale:
            yield from (part,) if isinstance(part, Evidence) else read_words(part, asked, reply)
        return
    if repeats(text, asked):
        yield Evidence(-1, "the same request again", text)
        return
    topic = _content_words(" ".join((*asked[-1:], reply)))
    own = _OwnWords(reply, text)
    known = forms()
    is_open = True  # nothing has been said about the reply yet
    denial: Evidence | None = None
    for clause in clauses(text):
        found = _read_clause(clause, own)
        if found is not None:
            is_open = False
            yield found
            if found.kind == "goes on":
                return  # what follows is about the next task
        elif known.clarify.search(clause):
            return
        elif _is_ask(clause):
            if _content_words(clause) & topic:
                continue  # a question about the reply leaves it open how it was received
            if is_open and not own.hold(clause):
                yield Evidence(1, "asks something else", clause)
            return
        elif known.denial.search(known.content.sub(" ", clause)):
            denial = denial or Evidence(-1, "denial", clause)
        elif abs(feeling := sentiment(clause)[0]) >= FEELING and not (feeling > 0 and own.hold(clause)):
            is_open = False
            yield Evidence(1 if feeling > 0 else -1, f"feeling {feeling:+.1f}", clause)
    if is_open and denial is not None:
        yield denial


class _OwnWords:
    """Words that are no praise in a person's message: those of the reply, which may have asked for them, and those that
    the message quotes from a program."""

    def __init__(self, reply: str, text: str) -> None:
        quoted = (match.group("words") for match in forms().quoted.finditer(shorten(text, MAX_CHARS).lower()))
        self._words = frozenset(re.findall(r"\w+", " ".join((reply.lower(), *quoted))))
        if "?" in reply.rstrip()[-QUESTION_CHARS:]:
            self._words |= forms().assent

    def hold(self, text: str) -> bool:
        """Whether all words of a piece of the person's message stand in the reply."""
        return self._words.issuperset(re.findall(r"\w+", text))


def _read_clause(clause: str, own: _OwnWords) -> Evidence | None:
    """The weightiest form in one clause."""
    known = forms()
    rest = known.content.sub(" ", clause)
    for kind, pattern in (("correction", known.redo), ("change request", known.change)):
        if match := pattern.search(rest):
            return Evidence(-1, kind, match.group().strip())
    if words := _first_not_in(own, known.moving_on, rest):
        return Evidence(1, "goes on", words)
    if match := known.rejection.search(rest):
        return Evidence(-1, "rejection", match.group().strip())
    if rest != clause and not own.hold(clause):
        return Evidence(1, "content", clause)
    for kind, pattern in (("thanks", known.thanks), ("praise", known.praise)):
        if words := _first_not_in(own, pattern, rest):
            return Evidence(1, kind, words)
    return None


def _first_not_in(own: _OwnWords, pattern: re.Pattern[str], clause: str) -> str:
    """The first form in a clause that has a word of the person's own; empty if there is none."""
    found = (match.group().strip() for match in pattern.finditer(clause))
    return next((words for words in found if not own.hold(words)), "")


def _is_ask(clause: str) -> bool:
    asks = clause.endswith("?") or forms().ask.search(clause) is not None
    return asks and len(clause.split()) >= ASK_WORDS


def clauses(text: str) -> Iterator[str]:
    """A message in lower-case pieces that each say one thing; quoted lines and the marks of code are left out."""
    text = shorten(text, MAX_CHARS).lower().replace("’", "'").replace("```", "\n")
    text = "\n".join("" if line.lstrip().startswith(">") else line for line in text.split("\n"))
    text = forms().set_phrase.sub(" ", text)
    for piece in re.split(r"(?<=[?])|[.!;\n](?=\s|$|\.)|:\s|,? \b(?:but|however|though|although|except)\b", text):
        clause = re.sub(r"\s+", " ", re.sub(r"[^\w\s'?/=\[\]-]", " ", piece)).strip()
        if clause:
            yield clause


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
    return {_NUMBERS.get(word, word.removesuffix("s")) for word in words} - forms().stop_words


def _bad_news_first(evidence: Evidence) -> int:
    return evidence.score
