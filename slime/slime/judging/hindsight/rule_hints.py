"""Hints without a model: what a complaint asked for, as an instruction.

    next state ─ complaint? ─▶ clauses of the person ─┬─ a wish that the tables know ─▶ its instruction
                                                      └─ another change request ──────▶ the person's words

It reads the forms of the rule judge (`rules/forms.toml`), and only where that judge hears a complaint: what is said
after thanks is about the next request.
"""

from __future__ import annotations

from slime.judging.hindsight.hints import Hindsight, fit_hints
from slime.judging.llm.prompts import message_text
from slime.judging.rules.forms import forms
from slime.judging.rules.judge import asked_before, clauses, weigh
from slime.types import Turn

MAX_WORDS = 20
"""A person's own words are an instruction only if they are few."""


class RuleHints:
    """Reads wishes from complaints; a `HintSource` that never fails."""

    async def hindsight(self, turn: Turn) -> Hindsight:
        next_state = turn.next_state or ()
        evidence = weigh(next_state, asked_before(turn), turn.reply)
        if not evidence or evidence[0].score >= 0:
            return Hindsight((), "nobody complained")
        said = [message_text(message) for message in next_state if message.get("role") == "user"]
        instructions = " ".join(wishes("\n".join(said)))
        if not instructions:
            return Hindsight((), "the complaint does not say what is wanted")
        fit, refused = fit_hints([instructions], turn)
        return Hindsight(fit, f"{evidence[0].kind}: {evidence[0].words[:80]}", refused)


def wishes(text: str) -> list[str]:
    """What a complaint wants, as instructions, the plainest first.

    >>> wishes("I can't use it like this. Try again without the bold text.")
    ['Use plain text, without bold.']
    """
    known = forms()
    heard: set[str] = set()
    own_words: list[str] = []
    for clause in clauses(text):
        wants_change = known.change.search(clause) is not None
        if not wants_change and not known.redo.search(clause) and known.moving_on.search(clause):
            break
        found = {wish.name for wish in known.wishes if wish.pattern.search(clause)}
        heard |= found
        if not found and wants_change and 1 < len(clause.split()) <= MAX_WORDS:
            own_words.append(f"{clause[:1].upper()}{clause[1:].rstrip('?')}.")
    covered = {other for wish in known.wishes if wish.name in heard for other in wish.covers}
    return [wish.instruction for wish in known.wishes if wish.name in heard - covered] or own_words[:1]
