"""Rejects hints that contain the answer instead of saying how to find it or how to put it.

    hint, request, next state ─▶ the reason it is refused, or nothing

A hint that contains the answer teaches overconfidence: the teacher's certainty comes from information that the policy
will not have. A hint says how: shorter, without bold, check the units. So numbers that the request does not hold, code,
statements of the answer and long quotations are rejected. False positives are preferred: a rejected hint only means
that the turn is not distilled.
"""

from __future__ import annotations

import re

LONGEST_QUOTATION = 8
"""Words in a row that a hint must not share with what came next."""

_NUMBER_WORDS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty",
)
_DIGITS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS)}
_NUMBER = re.compile(rf"\b(?:\d+(?:[.,]\d+){{0,6}}|{'|'.join(_NUMBER_WORDS)})\b")
_COUNT = re.compile(
    rf"(?:{_NUMBER.pattern})(?:[ -](?:to|or|or more|more|short|full|numbered|bullet|decimal|key|main)\b){{0,4}}[ -]"
    r"(?:words?|sentences?|lines?|paragraphs?|bullets?|points?|items?|steps?|characters?|tokens?|places?|digits?|"
    r"decimals?|examples?|options?|sections?|pages?|columns?|spaces?|levels?|times)\b"
)
"""A number that measures the form of a reply: "at most two sentences"."""
_ORDINARY_ONE = re.compile(
    r"\b(?:(?:this|that|the|each|every|any|no|only|which|last|first|next|another) one|one (?:of|by|at))\b"
)
_STATEMENT = re.compile(
    r"\b(?:answer|result|solution|total|sum|value|output|capital|name|number)s? "
    r"(?:is|was|are|equals?|should (?:be|have been|read)|must be|ought to be|=) "
    r"(?!(?:in|on|at|to|a|an|as|not|too|only|always|never|required|expected|wanted|given|shown|written|plain|bold|"
    r"boxed|short|shorter|brief|briefer|long|longer|needed|missing|wrong|clear|clearer)\b)\S"
)
_CODE = re.compile(r"```|`([^`]+)`")


def leak(hint: str, request: str, next_state: str) -> str:
    """Why a hint must not be used: what of the answer it holds; empty if nothing.

    >>> leak("The answer should be 12.", request="What is 3 times 4?", next_state="No, it is 12.")
    'it states the answer'
    >>> leak("Answer in at most two sentences.", request="What is 3 times 4?", next_state="Too long, two sentences!")
    ''
    """
    said, asked, told = (_plain(text) for text in (hint, request, next_state))
    if _STATEMENT.search(said):
        return "it states the answer"
    for match in _CODE.finditer(hint):
        code = match[1]
        if code is None or (len(code.split()) > 1 and _plain(code) not in asked):
            return "it holds code"
    numbers = _values(said)
    if given := sorted(numbers & _values(told) | numbers - _numbers(asked)):
        return f"it holds the number {given[0]}"
    if _runs(said) & _runs(told):
        return f"it quotes {LONGEST_QUOTATION} words or more of what came next"
    return ""


def _plain(text: str) -> str:
    """Lower case, single blanks, and no marks but those that belong to words and numbers."""
    return " ".join(re.sub(r"[^\w\s.,'=-]|[.,](?!\d)", " ", text.lower()).split())


def _values(text: str) -> set[str]:
    """Its numbers, but those that measure form or stand for "it"."""
    return _numbers(_ORDINARY_ONE.sub(" ", _COUNT.sub(" ", text)))


def _numbers(text: str) -> set[str]:
    return {_DIGITS.get(found, found.replace(",", "")) for found in _NUMBER.findall(text)}


def _runs(text: str) -> set[tuple[str, ...]]:
    """Every `LONGEST_QUOTATION` words that stand in a row."""
    words = text.split()
    return {tuple(words[i : i + LONGEST_QUOTATION]) for i in range(len(words) - LONGEST_QUOTATION + 1)}
