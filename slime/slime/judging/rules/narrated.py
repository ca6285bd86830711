"""Parses next states told in the third person: "User accepted the change and said 'perfect, thanks!'".

    text ─ opens with "user" + what the user did? ─▶ parts ─┬─ "accepted …", "rejected …": evidence
                                                           └─ "said '…'": words to read as the user's own

Exported conversations and hand-written samples hold such sentences where a message would stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slime.judging.rules.forms import Evidence, forms

MAX_CHARS = 1000
"""How much of a tale is read."""

_SUBJECT = re.compile(r"\W{0,3}(?:the )?(?:user|human|person) (?!:)", re.IGNORECASE)
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
    known = forms()
    if not any(pattern.match(rest.lower()) for pattern in (known.told_accepted, known.told_refused, known.told_said)):
        return None
    return _parts(rest)


def _parts(rest: str) -> Iterator[Evidence | str]:
    """One piece after the other; what was said reaches to the end, for a quotation has links of its own."""
    while rest:
        if speech := forms().told_said.match(rest.lower()):
            yield rest[speech.start(1) :].strip(_QUOTES)
            return
        link = _LINK.search(rest)
        part, rest = (rest[: link.start()], rest[link.end() :]) if link else (rest, "")
        rest = rest[subject.end() :] if (subject := _SUBJECT.match(rest)) else rest
        if forms().told_refused.match(part.lower()):
            yield Evidence(-1, "told", part)
        elif forms().told_accepted.match(part.lower()):
            yield Evidence(1, "told", part)
