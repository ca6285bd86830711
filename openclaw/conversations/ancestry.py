"""Which reply of ours is the last one that stands in a request, and where.

Searched from the newest message backwards, by the strongest evidence first:

    1. a tool-call id of ours, in an assistant message, in the tool result that answers it, or inside a text;
    2. the text of a reply, whole or joined on line ends with other texts, or its tool calls under other ids, when the
       conversation before it is the one that reply was given to, or when its user message or the reply before it agree;
    3. its place behind the very request it answered, when it begins alike;
    4. a summary that we wrote, inside a user message.

An assistant message for which nothing is found is not ours (an example, a client's "Ok.") and is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from slime.types import TurnKind

from openclaw.conversations.known_turns import KnownTurn, KnownTurns, ReplyState
from openclaw.conversations.postings import MAX_LOOKED_AT
from openclaw.requests.canonical import CanonicalMessage, alphanumeric
from openclaw.requests.identity import Identity
from openclaw.requests.kinds import kind_of
from openclaw.requests.plain_text import clipped, collapse, text_lines
from openclaw.requests.reading import SEARCHED_TEXT, Reading, backward_keys, calls_key, forward_keys, whole_key
from openclaw.requests.turn_ids import turn_of

_CALL_ID_IN_TEXT = re.compile(r"""['"](?:id|tool_call_id|call_id)['"]\s*:\s*['"]([\w-]{4,80})['"]""")
_FULL_ID = 12  # letters and digits of an id that names one call; shorter ones (`call_1`) are a client's counters
_MAX_EVIDENCE = 1_024  # turns whose evidence is weighed for one request: equal replies must not cost a square
_MAX_REPLY_TEXT = 131_072  # characters of messages that are compared for one request, newest first
_MAX_LINES = 256  # line ends at which a text is tried as several replies
_MAX_IDS = 64  # call ids that are looked for in one text
_ID_TEXT = 32_768  # characters of a text in which call ids are looked for, at its end
_MAX_VISITS, _MAX_LOOKS = 50_000, 256  # messages passed, and assistant messages compared, for one request
_ACCEPTED = 2.0  # evidence that a text-only reply is ours: a user message or the reply before it agrees
_SUMMARY_PLACES = 6  # messages at the start of a request among which a summary stands
_DISTINCTIVE = 40  # characters that nobody else writes by chance
_MAX_DEPTH = 12  # replies of ours that are looked up one before the other to tell equal texts apart
_MAX_VANISHED = 8  # replies of ours in a row that a client may have dropped from its history
_QUOTED = 8  # characters of a user message that count when it stands inside another


@dataclass(frozen=True, slots=True)
class Anchor:
    """The reply of `turn` stands at `position` of the request's messages.

    Attributes:
        equals: ids of all turns whose reply it may be just as well (parallel sessions that said the same), its own too.
    """

    turn: KnownTurn
    position: int
    equals: frozenset[str] = frozenset()


class AnchorSearch:
    """Finds the last reply of ours in one request among the turns known of its credential."""

    def __init__(self, reading: Reading, known: KnownTurns, identity: Identity, connection: str | None) -> None:
        self._reading = reading
        self._known = known
        self._identity = identity
        self._connection = connection
        self._found: dict[int, Anchor | None] = {}
        self._lines: dict[int, list[str]] = {}
        self._depth = 0
        self._num_visits = self._num_looks = self._num_weighed = self._num_chars = self._num_searched = 0

    @property
    def num_steps(self) -> int:
        """Messages passed, compared, and turns weighed so far."""
        return self._num_visits + self._num_looks + self._num_weighed

    @cached_property
    def _may_carry_summary(self) -> bool:
        return kind_of(self._reading.request, has_our_replies=False) is TurnKind.MAIN

    def find(self) -> Anchor | None:
        """The newest one, or None."""
        anchor = self._before(len(self._reading.messages))
        previous = self._reading.request.previous_reply_id
        if anchor is None and previous is not None:
            turn = self._known.by_call_id(alphanumeric(previous)) or self._known.turns.get(turn_of(previous) or "")
            return Anchor(turn, -1) if turn is not None else None
        return anchor

    def _before(self, end: int) -> Anchor | None:
        """The last reply of ours before position `end`; None where looking for it would lead too far back."""
        if end in self._found:
            return self._found[end]
        if self._depth == _MAX_DEPTH:
            return None
        self._depth += 1
        self._found[end] = self._search(end)
        self._depth -= 1
        return self._found[end]

    def _search(self, end: int) -> Anchor | None:
        answered: Anchor | None = None  # by tool results whose assistant message has not come yet
        for position in range(end - 1, -1, -1):
            self._num_visits += 1
            if self._num_visits > _MAX_VISITS:
                break
            message = self._reading.messages[position]
            if message.role == "tool":
                turn = self._known.by_call_id(message.call_ids[0]) if message.call_ids else None
                if turn is not None:
                    answered = Anchor(turn, position - 1)
            elif message.role == "assistant":
                turn = self._by_ids(message.call_ids)
                anchor = self._by_content(position, message) if turn is None else Anchor(turn, position)
                if anchor is not None:
                    return anchor
            elif message.role == "user":
                turn = self._by_summary(self._reading.user_text(position))
                if turn is not None and answered is None:
                    return Anchor(turn, position)
            if answered is not None and message.role != "tool":
                return answered
        return answered

    def _by_ids(self, call_ids: Iterable[str]) -> KnownTurn | None:
        for call_id in call_ids:
            turn = self._known.by_call_id(call_id)
            if turn is not None:
                return turn
        return None

    def _by_content(self, position: int, message: CanonicalMessage) -> Anchor | None:
        """By text, by tool calls under other ids, by ids inside the text, by its place; each a little less certain."""
        if any(len(call_id) >= _FULL_ID for call_id in message.call_ids):
            return None  # every client keeps ids: an unknown one of full length is somebody else's
        self._num_looks += 1
        if self._num_looks > _MAX_LOOKS:
            return None
        lines = self._lines_at(position, message.text)
        anchor = self._choose(whole_key(lines), position) if lines else None
        if anchor is None and message.call_ids:
            key = calls_key(message.message)
            anchor = self._choose(key, position) if key is not None else None
        if anchor is None and "id" in message.text and (written := _CALL_ID_IN_TEXT.findall(message.text[-_ID_TEXT:])):
            turn = self._by_ids(alphanumeric(call_id) for call_id in written[: -_MAX_IDS - 1 : -1])
            anchor = Anchor(turn, position) if turn is not None else None
        if anchor is None and len(lines) > 1:
            anchor = self._joined(position, lines)
        return anchor or (self._by_place(position, lines) if lines else None)

    def _lines_at(self, position: int, text: str) -> list[str]:
        """The lines of an assistant message; none once too much was read in vain."""
        if position not in self._lines:
            self._num_chars += len(text)
            self._lines[position] = text_lines(text) if self._num_chars <= _MAX_REPLY_TEXT else []
        return self._lines[position]

    def _by_place(self, position: int, lines: list[str]) -> Anchor | None:
        """A reply that was shortened or added to: it stands behind the very request it answered and begins alike."""
        said = " ".join(lines)
        for turn in self._known.by_request(self._reading.key_before(position)):
            reply = collapse(turn.reply_text)
            length = min(len(said), len(reply))
            if length >= _QUOTED and said[:length][:_DISTINCTIVE] == reply[:length][:_DISTINCTIVE]:
                return Anchor(turn, position)
        return None

    def _joined(self, position: int, lines: list[str]) -> Anchor | None:
        """A reply that is the end or the beginning of the text: the longest end first, then the longest beginning."""
        for keys in (backward_keys(lines[-_MAX_LINES:]), forward_keys(lines[:_MAX_LINES])):
            for key in reversed(list(keys)[: min(len(lines) - 1, _MAX_LINES)]):
                anchor = self._choose(key, position)
                if anchor is not None:
                    return anchor
        return None

    def _by_summary(self, text: str) -> KnownTurn | None:
        """A compaction whose summary a user message holds, in a request that carries a conversation on."""
        if not self._known.has_summaries or not self._may_carry_summary or self._num_searched > _MAX_REPLY_TEXT:
            return None
        text = clipped(text, SEARCHED_TEXT)
        self._num_searched += len(text)
        lines = collapsed = ""
        for turn in self._known.summaries():
            lines = lines or "\n".join(("", *text_lines(text), ""))
            if len(turn.summary) >= _QUOTED and f"\n{turn.summary}\n" in lines:
                return turn
            collapsed = collapsed or collapse(text)
            if len(turn.summary) >= _DISTINCTIVE and collapse(turn.summary) in collapsed:
                return turn
        return None

    def _choose(self, reply_key: bytes, position: int) -> Anchor | None:
        """The turn whose reply stands at `position`, of those that said the same; None when none fits."""
        candidates = list(self._known.by_reply(reply_key))
        if not candidates:
            return None
        key = self._reading.key_before(position)
        best = [turn for turn in candidates if turn.request_key == key]
        if not best and len(candidates) == MAX_LOOKED_AT:  # many say this: the one asked for may be an older one
            best = [turn for turn in self._known.by_request(key) if reply_key in turn.reply_keys]
        if not best:
            self._num_weighed += len(candidates)
            if self._num_weighed > _MAX_EVIDENCE:
                return None
            said, before = self._reading.user_before(position), self._before(position)
            evidence = [self._evidence(turn, position, said, before) for turn in candidates]
            most = max(evidence)
            if most < _ACCEPTED:
                return None
            best = [turn for turn, found in zip(candidates, evidence, strict=True) if found == most]
        equals = frozenset(turn.turn_id for turn in best)
        return Anchor(max(best, key=self._preference), position, equals)

    def _preference(self, turn: KnownTurn) -> tuple[float, ...]:
        """Among turns that fit equally: the session named, the reply that arrived, the line that waits to go on."""
        return (
            turn.name is not None and turn.name == self._identity.name,
            turn.connection is not None and turn.connection == self._connection,
            turn.state is ReplyState.DELIVERED,
            self._known.is_open(turn),
            turn.last_activity,
        )

    def _evidence(self, turn: KnownTurn, position: int, said: str, before: Anchor | None) -> float:
        """How much speaks for a turn, of those that said what stands at `position`.

        Args:
            said: the user message before it.
            before: the reply of ours before it.
        """
        if turn.asks_summary:  # its request holds the history as one text: nothing else can agree
            return _ACCEPTED if position < _SUMMARY_PLACES else 0.0
        evidence, asked = 0.0, turn.user_text
        if asked and said:
            if asked == said:
                evidence += 2.0
            elif min(len(asked), len(said)) >= _QUOTED and (asked in said or said in asked):
                evidence += 1.5
        evidence += self._order_evidence(turn, before)
        if turn.name is not None and self._identity.name is not None:
            evidence += 0.5 if turn.name == self._identity.name else -1.0
        return evidence

    def _order_evidence(self, turn: KnownTurn, before: Anchor | None) -> float:
        """Whether the reply of ours before this one is the one that the turn continued."""
        if before is None:
            return 0.5 if turn.parent_id is None else 0.0
        if before.turn.asks_summary and before.turn.session_id == turn.session_id:
            return 2.0  # kept word for word behind the summary of what was before it
        earlier = before.equals or {before.turn.turn_id}
        ancestor = turn.parent_id
        if ancestor in earlier:
            return 2.0
        for _ in range(_MAX_VANISHED):
            ancestor = self._known.parent_of(ancestor)
            if ancestor in earlier:
                return 0.0
        return -1.0
