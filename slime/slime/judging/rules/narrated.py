"""Parses next states told in the third person: "User accepted the change and said 'perfect, thanks!'".

    text ─ opens with "user" + what the user did? ─▶ parts ─┬─ "accepted …", "rejected …": evidence
                                                           └─ "said '…'": words to read as the user's own

Exported conversations and hand-written samples hold such sentences where a message would stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime.judging.rules.evidence import Evidence

MAX_CHARS = 1000
"""How much of a tale is read."""

_SUBJECT = re.compile(r"\W{0,3}(?:the )?(?:user|human|person) (?!:)", re.IGNORECASE)
_ADVERBS = (
    r"(?:(?:was|were|is|has|had|then|also|later|simply|just|really|very|so|quickly|immediately|happily|finally|fully|"
    r"explicitly|politely|again) )*"
)
_ACCEPTED = re.compile(
    _ADVERBS + r"(?:accept|approv|adopt|merg|thank|prais|lov(?:ed|es)|lik(?:ed|es)|enjoy|appreciat|confirm|agree|kept|"
    r"appli(?:ed|es)|us(?:ed|es) (?:it|the|this)|booked|bought|sent|satisfied|happy|pleased|delighted|impressed|glad|"
    r"continu|proceed|mov(?:ed|es) on|went on|(?:gave|gives) (?:a |it a )?(?:thumbs[- ]up|positive))"
)
_REFUSED = re.compile(
    _ADVERBS + r"(?:reject|declin|refus|revert|undid|discard|dismiss|complain|correct(?:ed|s)\b|object(?:ed|s)\b|"
    r"dislik|disagree|disapprov|dissatisfied|unhappy|frustrated|annoyed|disappointed|confused|angry|redid|redo|re-?ask|"
    r"repeat|insist|ask(?:ed|s) (?:(?:it|the assistant|the agent) )?(?:again|the same|(?:for|to) (?:\w+ ){0,3}(?:chang|"
    r"revis|re-?writ|redo|correct|fix|shorten|retry|regenerat|clarif|undo|different|another|shorter|simpler|longer))|"
    r"(?:did not|didn't|does not|doesn't|not|never|refused to) (?:\w+ )?(?:accept|lik|approv|agree|use|want|satisf|"
    r"happy|understand|pleased)|had to|(?:gave|gives) (?:a |it a )?(?:thumbs[- ]down|negative)|"
    r"point(?:ed|s) out (?:\w+ ){0,4}(?:error|mistake|bug|wrong|problem|missing))"
)
_SPEECH = re.compile(
    _ADVERBS + r"(?:said|says|sa(?:id|ys) that|repl(?:ied|ies)|wrote|writes|answer(?:ed|s)|respond(?:ed|s)|"
    r"comment(?:ed|s)|added|adds|exclaimed|noted|stat(?:ed|es)|express(?:ed|es))(?: that| with)?\s*[:,]?\s*(.+)",
    re.DOTALL,
)
_QUOTES = "\"'“”‘’«» "
_LINK = re.compile(r",? (?:and|but|then|so|although|while) |[.;] ", re.IGNORECASE)


def narrated(text: str) -> Iterator[Evidence | str] | None:
    """What the user is said to have done, and what to have said; None where the text is not such a tale.

    >>> list(narrated("User accepted the change and said 'perfect, thanks!'"))
    [Evidence(score=1, kind='told', words='accepted the change'), 'perfect, thanks!']
    """
    text = " ".join(text[:MAX_CHARS].replace("’", "'").split())
    subject = _SUBJECT.match(text)
    if subject is None or text.endswith("?"):
        return None
    rest = text[subject.end() :]
    if not any(pattern.match(rest.lower()) for pattern in (_ACCEPTED, _REFUSED, _SPEECH)):
        return None
    return _parts(rest)


def _parts(rest: str) -> Iterator[Evidence | str]:
    """One piece after the other; what was said reaches to the end, for a quotation has links of its own."""
    while rest:
        if speech := _SPEECH.match(rest.lower()):
            yield rest[speech.start(1) :].strip(_QUOTES)
            return
        link = _LINK.search(rest)
        part, rest = (rest[: link.start()], rest[link.end() :]) if link else (rest, "")
        rest = rest[subject.end() :] if (subject := _SUBJECT.match(rest)) else rest
        if _REFUSED.match(part.lower()):
            yield Evidence(-1, "told", part)
        elif _ACCEPTED.match(part.lower()):
            yield Evidence(1, "told", part)
