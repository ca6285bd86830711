"""Finds the last reply of ours that a request contains, and its position.

The search runs backwards from the newest message, strongest evidence first:

    1. a tool-call id of ours, in an assistant message, in the tool result that answers it, or inside a text;
    2. the text of a reply, whole or joined with other texts at line ends, or its tool calls under other ids, when the
       conversation before it matches the turn's request, or its user message or the previous reply match;
    3. its position right after the request it answered, when the text begins alike;
    4. a summary of ours inside a user message.

An assistant message without a match is not ours (an example, a client's "Ok.") and is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from slime.types import TurnKind

from openclaw.conversations.known_turns import KnownTurn, KnownTurns, ReplyState
from openclaw.conversations.postings import MAX_LOOKED_AT
from openclaw.requests.canonical import CanonicalMessage, alphanumeric
from openclaw.requests.identity import Identity
from openclaw.requests.kinds import kind_of
from openclaw.requests.plain_text import clipped, collapse, text_lines
from openclaw.requests.reading import SEARCHED_TEXT, Reading, backward_keys, calls_key, forward_keys, lines_and_key
from openclaw.requests.turn_ids import turn_of

_CALL_ID_IN_TEXT = re.compile(r"""['"](?:id|tool_call_id|call_id)['"]\s*:\s*['"]([\w-]{4,80})['"]""")
_FULL_ID = 12  # letters and digits of a globally unique call id; shorter ones (`call_1`) are client counters
_MAX_EVIDENCE = 512  # turns scored per request: bounds the quadratic cost of equal replies
_MAX_REPLY_TEXT = 131_072  # characters of messages compared per request, newest first
_MAX_LINES = 256  # line ends at which a text is split into several replies
_MAX_IDS = 64  # call ids searched for in one text
_ID_TEXT = 32_768  # characters at the end of a text that are searched for call ids
_MAX_VISITS, _MAX_LOOKS = 8_192, 256  # messages visited, and assistant messages compared, per request
_ACCEPTED = 2.0  # minimum evidence for a text-only reply: a user message or the previous reply matches
_SUMMARY_PLACES = 6  # messages at the start of a request that may be a summary
_DISTINCTIVE = 40  # characters that do not coincide by chance
_MAX_DEPTH = 12  # earlier replies followed back to tell equal texts apart
_MAX_VANISHED = 8  # consecutive replies of ours that a client may have dropped from its history
_QUOTED = 8  # minimum length of a user message that counts when quoted inside another


@dataclass(frozen=True, slots=True)
class Anchor:
    """A match: the reply of `turn` is message `position` of the request.

    Attributes:
        equals: ids of all turns whose reply matches equally (parallel sessions with equal replies), its own included.
    """

    turn: KnownTurn
    position: int
    equals: frozenset[str] = frozenset()


class AnchorSearch:
    """Searches one request for the last reply of ours among the known turns of its credential."""

    def __init__(self, reading: Reading, known: KnownTurns, identity: Identity, connection: str | None) -> None:
        self._reading = reading
        self._known = known
        self._identity = identity
        self._connection = connection
        self._found: dict[int, Anchor | None] = {}
        self._lines: dict[int, tuple[Sequence[str], bytes]] = {}
        self._depth = 0
        self._num_visits = self._num_looks = self._num_weighed = self._num_chars = self._num_searched = 0

    @property
    def num_steps(self) -> int:
        """Messages visited, messages compared and turns scored so far."""
        return self._num_visits + self._num_looks + self._num_weighed

    @cached_property
    def _may_carry_summary(self) -> bool:
        return kind_of(self._reading.request, has_our_replies=False) is TurnKind.MAIN

    def find(self) -> Anchor | None:
        """The newest match, or None."""
        anchor = self._before(len(self._reading.messages))
        previous = self._reading.request.previous_reply_id
        if anchor is None and previous is not None:
            turn = self._known.by_call_id(alphanumeric(previous)) or self._known.turns.get(turn_of(previous) or "")
            return Anchor(turn, -1) if turn is not None else None
        return anchor

    def _before(self, end: int) -> Anchor | None:
        """The last reply of ours before position `end`; None beyond the depth limit."""
        if end in self._found:
            return self._found[end]
        if self._depth == _MAX_DEPTH:
            return None
        self._depth += 1
        self._found[end] = self._search(end)
        self._depth -= 1
        return self._found[end]

    def _search(self, end: int) -> Anchor | None:
        answered: Anchor | None = None  # from tool results whose assistant message is still ahead
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
        """Match by text, tool calls under other ids, ids inside the text, then position, in falling certainty."""
        if any(len(call_id) >= _FULL_ID for call_id in message.call_ids):
            return None  # clients keep ids: an unknown full-length id comes from another server
        self._num_looks += 1
        if self._num_looks > _MAX_LOOKS:
            return None
        lines, key = self._lines_at(position, message.text)
        anchor = self._choose(key, position) if lines else None
        if anchor is None and message.call_ids:
            key_of_calls = calls_key(message.message)
            anchor = self._choose(key_of_calls, position) if key_of_calls is not None else None
        if anchor is None and "id" in message.text and (written := _CALL_ID_IN_TEXT.findall(message.text[-_ID_TEXT:])):
            turn = self._by_ids(alphanumeric(call_id) for call_id in written[: -_MAX_IDS - 1 : -1])
            anchor = Anchor(turn, position) if turn is not None else None
        if anchor is None and len(lines) > 1:
            anchor = self._joined(position, lines)
        return anchor or (self._by_place(position, lines) if lines else None)

    def _lines_at(self, position: int, text: str) -> tuple[Sequence[str], bytes]:
        """The lines of an assistant message and their key; empty once the text budget is spent."""
        if position not in self._lines:
            self._num_chars += len(text)
            self._lines[position] = lines_and_key(text if self._num_chars <= _MAX_REPLY_TEXT else "")
        return self._lines[position]

    def _by_place(self, position: int, lines: Sequence[str]) -> Anchor | None:
        """A truncated or extended reply: it follows the request it answered and begins alike."""
        said = " ".join(lines)
        for turn in self._known.by_request(self._reading.key_before(position)):
            reply = collapse(turn.reply_text)
            length = min(len(said), len(reply))
            if length >= _QUOTED and said[:length][:_DISTINCTIVE] == reply[:length][:_DISTINCTIVE]:
                return Anchor(turn, position)
        return None

    def _joined(self, position: int, lines: Sequence[str]) -> Anchor | None:
        """A reply that is a suffix or a prefix of the text; longest suffix first, then longest prefix."""
        for keys in (backward_keys(lines[-_MAX_LINES:]), forward_keys(lines[:_MAX_LINES])):
            for key in reversed(list(keys)[: min(len(lines) - 1, _MAX_LINES)]):
                anchor = self._choose(key, position)
                if anchor is not None:
                    return anchor
        return None

    def _by_summary(self, text: str) -> KnownTurn | None:
        """A compaction whose summary a user message contains, in a request that continues a conversation."""
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
        """The best match at `position` among turns with equal replies; None when no evidence suffices."""
        candidates = list(self._known.by_reply(reply_key))
        if not candidates:
            return None
        key = self._reading.key_before(position)
        best = [turn for turn in candidates if turn.request_key == key]
        if not best and len(candidates) == MAX_LOOKED_AT:  # truncated postings: the match may be an older turn
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
        """Tie-breakers: same session name, same connection, delivered reply, not yet continued, most recent."""
        return (
            turn.name is not None and turn.name == self._identity.name,
            turn.connection is not None and turn.connection == self._connection,
            turn.state is ReplyState.DELIVERED,
            self._known.is_open(turn),
            turn.last_activity,
        )

    def _evidence(self, turn: KnownTurn, position: int, said: str, before: Anchor | None) -> float:
        """Score a turn whose reply equals the message at `position`.

        Args:
            said: the user message before it.
            before: the reply of ours before it.
        """
        if turn.asks_summary:  # its request is one text, so there is nothing else to compare
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
        """Score whether the previous reply of ours belongs to the turn's parent."""
        if before is None:
            return 0.5 if turn.parent_id is None else 0.0
        if before.turn.asks_summary and before.turn.session_id == turn.session_id:
            return 2.0  # kept verbatim after the summary of the earlier history
        earlier = before.equals or {before.turn.turn_id}
        ancestor = turn.parent_id
        if ancestor in earlier:
            return 2.0
        for _ in range(_MAX_VANISHED):
            ancestor = self._known.parent_of(ancestor)
            if ancestor in earlier:
                return 0.0
        return -1.0
