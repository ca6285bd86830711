"""What people say besides their problems: wishes about style, complaints, corrections, thanks, greetings.

`request(wish, rng)` composes an opener, the wish and a closer; there are a few hundred wordings of each wish. The
tiny model is trained on the same wordings as the simulated people use, so it understands them; whether a
reaction was good news is for a judge to find out from the words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

WISHES: Mapping[str, tuple[str, ...]] = {
    "plain": (
        "no bold, no lists and no boxes",
        "do not use bold, lists or boxes",
        "write it plainly, without any formatting",
        "just use plain words",
        "write it in plain text",
        "leave out the formatting",
    ),
    "bold": ("use bold", "write the answer in bold", "make the answer bold"),
    "list": ("use a numbered list", "write it as a numbered list", "show the steps as a list"),
    "boxed": ("box the answer", "draw a box around the answer", "use a boxed answer"),
    "short": ("keep it short", "make it shorter", "only the number", "be brief"),
    "detailed": ("explain it in more detail", "give me more detail", "make it longer"),
    "friendly": ("be more friendly", "use a friendly tone", "be nicer to me"),
    "praising": ("give me some praise", "be more encouraging", "say something encouraging first"),
}
"""What can be asked for, by the name of the rule it makes true."""

AGAINST: Mapping[str, tuple[str, ...]] = {
    "bold": ("without the bold", "without bold text", "with no bold"),
    "list": ("without a list", "without the numbered list", "with no list"),
    "boxed": ("without the box", "without a boxed answer", "with no box"),
}
"""What can be asked to go away, by format; the model then writes plainly."""

_POLITE = ("", "please ", "could you ")
_REDO = (
    "Again {against}, please.",
    "Please write that again {against}.",
    "Try again {against}.",
    "Can you redo it {against}?",
)
_DISLIKES = (
    "I don't like this.",
    "That is not what I wanted.",
    "Hmm, I can't use it like this.",
    "No, not like that.",
    "This looks bad.",
    "I can't hand this in.",
    "Sorry, that is not right for me.",
)
_WRONG = (
    "That is wrong.",
    "I think {n} is wrong.",
    "No, {n} is not correct.",
    "{n} can't be right.",
    "This is a mistake.",
)
_CHECK = ("Please check it again.", "Try again.", "Can you do it again?", "Please correct it.")
_THANKS = (
    "Thanks!",
    "Thank you!",
    "Perfect, thanks!",
    "Great, thank you.",
    "That is great!",
    "Very good, thanks.",
    "Nice, thanks!",
)
_PRAISE_STYLE = ("", "", "I like how you wrote it.", "That is just how I like it.", "Good answer.")
_NEXT = ("", "Next one:", "Now this one:", "Here is another:", "And this?")
_GOODBYES = ("That was all.", "Bye!", "See you tomorrow!", "I am done for today.")
_ASKS = ("", "", "", "Hi!", "Hello!", "Can you help me?", "Please help:", "My homework:")
GREETINGS = ("Hi!", "Hello!", "Hello, how are you?", "Hi, who are you?", "Good morning!")


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def ask(text: str, rng: random.Random) -> str:
    """A first question: `"My homework: Mia has 3 apples …"`."""
    return _join(rng.choice(_ASKS), text)


def ask_next(text: str, rng: random.Random) -> str:
    """Thanks for the last answer, and the next problem."""
    return _join(thank(rng), rng.choice(_NEXT), text)


def wish(name: str, rng: random.Random) -> str:
    """A wish about style as a sentence: `"Please use a numbered list."`."""
    polite = rng.choice(_POLITE)
    return _capitalised(f"{polite}{rng.choice(WISHES[name])}{'?' if polite.startswith('could') else '.'}")


def complain(name: str, rng: random.Random, against: str | None = None) -> str:
    """A complaint about the style of the last answer: what was disliked (`against`, a format) and what is wanted.

    >>> complain("plain", random.Random(1), against="bold")
    """
    redo = rng.choice(_REDO).format(against=rng.choice(AGAINST[against])) if against else ""
    if redo and rng.random() < 0.5:
        return _join(rng.choice(_DISLIKES), redo)
    return _join(rng.choice(_DISLIKES), redo, wish(name, rng))


def correct(answer: int | None, rng: random.Random) -> str:
    """A complaint about a wrong answer; never says what the right one is."""
    choices = _WRONG if answer is not None else _WRONG[:1]
    return _join(rng.choice(choices).format(n=answer), rng.choice(_CHECK))


def thank(rng: random.Random) -> str:
    return _join(rng.choice(_THANKS), rng.choice(_PRAISE_STYLE))


def say_goodbye(rng: random.Random) -> str:
    """Thanks, and the end of the session."""
    return _join(thank(rng), rng.choice(_GOODBYES))
