"""Captures requests and replies as stored turns.

    request ─ begin ─▶ OpenTurn (its place in the tree: ConversationIndex) ─ prior ─▶ the parent's turn, ids to reuse
                          │
                          ├─ commit ──▶ Turn ─▶ Spool ─▶ Store.append, fsync ─▶ "stored", else "pending" or "failed"
                          └─ abandon ─▶ the part that was sent, as an aborted turn

A store failure costs the capture, never the reply. A turn whose sampling distribution the trainer cannot reproduce
(top-k/top-p, penalties, greedy) is stored as excluded, with the reason: its log-probs are not those of the policy.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, TypeVar

from slime.errors import CaptureIsOff, StoreError, UnknownTurn
from slime.sized_cache import SizedCache
from slime.store import Store
from slime.types import Completion, Feedback, Message, SamplingParams, Turn, TurnKind, TurnState

from openclaw.conversations.index import IncomingRequest, Placement
from openclaw.conversations.recall import Recall
from openclaw.conversations.stored_turns import keys_of
from openclaw.requests.chat_request import ChatRequest
from openclaw.requests.reading import Reading
from openclaw.requests.turn_ids import new_turn_id
from openclaw.spool import COMMIT_PATIENCE_S, Outcome, Spool

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_REMEMBERED_TOKENS = 8_000_000


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished generation: the prompt, the sampled completion and the reply."""

    prompt_ids: tuple[int, ...]
    completion: Completion
    sampling: SamplingParams
    reply: Message


@dataclass(frozen=True, slots=True)
class Heard:
    """Stored feedback and the current state of its turn; `trained_at` is the update that trained the turn."""

    feedback: Feedback
    turn_id: str
    session_id: str
    kind: TurnKind
    state: TurnState
    trained_at: int | None


class OpenTurn(Protocol):
    """A turn in progress; `prior` is the parent: the turn whose reply is our last one in the request."""

    turn_id: str
    session_id: str
    prior: Turn | None

    async def commit(self, generated: Generated) -> Outcome:
        """Store the finished turn; returns after the fsync, and never raises on a store failure.

        Later requests can continue its reply from here on, before the reply is sent.
        """
        ...

    def abandon(self, reason: str, sent: Generated | None = None) -> None:
        """End the turn before its last frame was sent; the part that was sent is stored in the background."""
        ...


def capture_is_off() -> CaptureIsOff:
    return CaptureIsOff("capture is off: start the server with --enable-rl-intercept", code="capture_off")


class Capture(Protocol):
    """Captures turns, or nothing: `CaptureOn` and `CaptureOff`."""

    @property
    def num_stored(self) -> int: ...

    @property
    def num_failed(self) -> int: ...

    @property
    def num_pending(self) -> int: ...

    async def restore(self) -> None: ...

    async def begin(self, request: ChatRequest) -> OpenTurn:
        """Place a request. Call it in order of arrival, which tells retries from parallel conversations."""
        ...

    async def feedback(self, turn_id: str | None, session: str, feedback: Feedback) -> Heard:
        """Store feedback on a turn, or on the newest reply of a session when `turn_id` is None.

        Raises:
            RequestError: there is no such turn, several API keys have a session of that name, or capture is off.
            StoreError: the store cannot commit it.
        """
        ...

    async def is_writable(self) -> bool:
        """Whether a commit would succeed now, or recently did."""
        ...

    @property
    def keeps_turns(self) -> bool:
        """Whether a turn that ends now is kept, if only in memory until the store commits again."""
        ...

    async def close(self) -> None: ...


class CaptureOff:
    """Captures nothing; turns have ids but are not stored."""

    num_stored = num_failed = num_pending = 0

    async def restore(self) -> None:
        pass

    async def begin(self, request: ChatRequest) -> OpenTurn:
        return _UncapturedTurn(request)

    async def feedback(self, turn_id: str | None, session: str, feedback: Feedback) -> Heard:
        raise capture_is_off()

    async def is_writable(self) -> bool:
        return True

    keeps_turns = True

    async def close(self) -> None:
        pass


class _UncapturedTurn:
    prior: Turn | None = None

    def __init__(self, request: ChatRequest, outcome: Outcome = "off") -> None:
        identity = request.caller.identity
        self.turn_id = new_turn_id()
        self.session_id = identity.name if identity.name is not None and identity.is_firm else self.turn_id
        self._outcome = outcome

    async def commit(self, generated: Generated) -> Outcome:
        return self._outcome

    def abandon(self, reason: str, sent: Generated | None = None) -> None:
        pass


class CaptureOn:
    """Captures every turn of every conversation.

    Attributes:
        num_stored, num_failed, num_pending: turns committed, lost, and waiting for the store.
    """

    def __init__(self, store: Store) -> None:
        self._num_unplaced = 0
        self._spool = Spool(lambda: self._store.check_writable())
        self._store = store
        self._recall = Recall(store)
        self._index = self._recall.index
        self._turns: SizedCache[str, Turn] = SizedCache(_MAX_REMEMBERED_TOKENS)
        self._is_closed = False
        self._background: set[asyncio.Task[Any]] = set()

    async def restore(self) -> None:
        """Restore the conversations of the previous server process."""
        await self._recall.start()
        self._in_background(self._recall.give_keys())

    async def begin(self, request: ChatRequest) -> OpenTurn:
        caller = request.caller
        incoming = IncomingRequest(request.conversation, caller.identity, caller.credential)
        try:
            reading = await Reading.in_slices(request.conversation, request.num_bytes)
            free = await self._recall.before(incoming, reading)
            placement = self._index.begin(incoming, reading, free)
            if placement.was_answered and placement.retry_of is not None:
                reason = "its reply did not arrive: the client retried the request"
                self._in_background(self._store.abort(placement.retry_of, reason))
            turn = _CapturedTurn(self, placement, request)
        except Exception:  # a request is never refused because capture could not place it
            log.exception("request not placed")
            self._num_unplaced += 1
            return _UncapturedTurn(request, "failed")
        try:
            turn.prior = None if placement.parent_id is None else await self._find(placement.parent_id)
        except (Exception, asyncio.CancelledError) as error:
            turn.abandon(f"{error or type(error).__name__}")
            raise
        return turn

    async def feedback(self, turn_id: str | None, session: str, feedback: Feedback) -> Heard:
        if turn_id is None:
            await self._recall.session_named(session)
            turn_id = self._index.newest_reply(session)
        turn = await self._store.get(turn_id) if turn_id is not None else None
        if turn is None:
            what = f"turn {turn_id}" if turn_id is not None else "conversation of that name"
            raise UnknownTurn(f"no {what} was captured", "turn_id", "turn_not_found")
        stored = await self._store.add_feedback(turn.turn_id, feedback)
        now = await self._store.get(turn.turn_id)
        log.info("feedback turn=%s kind=%s value=%s", turn.turn_id, stored.kind, stored.value)
        return Heard(
            stored,
            turn.turn_id,
            turn.session_id,
            turn.kind,
            turn.state if now is None else now.state,
            await self._store.trained_at(turn.turn_id),
        )

    @property
    def num_stored(self) -> int:
        return self._spool.num_stored

    @property
    def num_failed(self) -> int:
        return self._num_unplaced + self._spool.num_failed

    @property
    def num_pending(self) -> int:
        return self._spool.num_waiting

    @property
    def keeps_turns(self) -> bool:
        return self._spool.keeps_turns

    async def is_writable(self) -> bool:
        return await self._spool.is_writable()

    async def close(self) -> None:
        """Finish pending writes, then close the store; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._background:
            await asyncio.wait(self._background, timeout=COMMIT_PATIENCE_S)
        await self._spool.close(COMMIT_PATIENCE_S)
        await self._store.close()

    # ---- called by open turns

    async def _find(self, turn_id: str) -> Turn | None:
        if (turn := self._turns.get(turn_id)) is not None:
            return turn
        try:
            return await self._store.get(turn_id)
        except StoreError as error:  # its ids cannot be reused; the prompt is rendered from its messages instead
            log.warning("cannot read earlier turn turn=%s error=%s", turn_id, error)
            return None

    async def _append(self, turn: Turn, placement: Placement) -> Outcome:
        self._turns.put(turn.turn_id, turn, len(turn.prompt_ids) + len(turn.completion.token_ids))
        answered = None
        if placement.parent_id is not None and placement.next_state is not None:
            answered = (placement.parent_id, placement.next_state)
        size = len(turn.prompt_ids) + len(turn.completion.token_ids)
        keys = keys_of(turn)
        append = partial(self._store.append, turn, next_state_of=answered, keys=keys)
        return await self._spool.write(turn.turn_id, append, size)

    def _give_up(self, placement: Placement, turn: Turn | None, *, is_finished: bool, is_committed: bool) -> None:
        """Record a turn that ended early: `turn` holds the part sent, or the committed but undelivered turn."""
        if is_finished or turn is None:
            self._index.fail(placement)
        else:
            self._index.finish(placement, turn.reply, delivered=False)
        if is_committed and turn is not None:
            reason = turn.reason or "not delivered"
            self._in_background(self._spool.write(turn.turn_id, partial(self._store.abort, turn.turn_id, reason)))
        elif turn is not None:
            self._in_background(self._append(turn, placement))
        elif placement.parent_id is not None and placement.next_state is not None:
            # The reply is lost, but the request still holds the next state of the reply before it.
            attach = partial(self._store.attach, placement.parent_id, placement.next_state)
            self._in_background(self._spool.write(placement.parent_id, attach))

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("background store write failed error=%s", error)


class _CapturedTurn:
    def __init__(self, capture: CaptureOn, placement: Placement, request: ChatRequest) -> None:
        self.turn_id = placement.turn_id
        self.session_id = placement.session_id
        self.prior: Turn | None = None
        self._capture = capture
        self._placement = placement
        self._request = request
        self._created_at = time.time()
        self._committed: Turn | None = None
        self._is_finished = False

    async def commit(self, generated: Generated) -> Outcome:
        if generated.sampling.is_reproducible:
            turn = self._turn(generated, TurnState.SERVED)
        else:
            reason = f"sampled with {_unrepeatable(generated.sampling)}, which the trainer cannot reproduce"
            turn = self._turn(generated, TurnState.EXCLUDED, reason)
        self._committed = turn
        outcome = await self._capture._append(turn, self._placement)
        self._is_finished = True
        self._capture._index.finish(self._placement, turn.reply)
        return outcome

    def abandon(self, reason: str, sent: Generated | None = None) -> None:
        turn = self._committed
        if turn is None and sent is not None and sent.completion.token_ids:
            turn = self._turn(sent, TurnState.ABORTED, reason)
        self._capture._give_up(
            self._placement, turn, is_finished=self._is_finished, is_committed=self._committed is not None
        )

    def _turn(self, generated: Generated, state: TurnState, reason: str = "") -> Turn:
        placement = self._placement
        details: dict[str, Any] = {"session_source": placement.source}
        details |= {"session_done": True} if placement.is_done else {}
        return Turn(
            turn_id=placement.turn_id,
            session_id=placement.session_id,
            parent_id=placement.parent_id,
            kind=placement.kind,
            messages=tuple(self._request.messages),
            prompt_ids=generated.prompt_ids,
            completion=generated.completion,
            sampling=generated.sampling,
            reply=generated.reply,
            tools=tuple(self._request.tools),
            state=state,
            retry_of=placement.retry_of,
            created_at=self._created_at,
            source=self._request.caller.source or placement.credential,
            reason=reason,
            template_options=self._request.template_options,
            matching=placement.matching,
            details=details,
        )


def _unrepeatable(sampling: SamplingParams) -> str:
    """The settings that change the distribution sampled from: `temperature=0.0, top_p=0.9`."""
    usual = SamplingParams()
    names = [field.name for field in fields(sampling) if field.name.endswith("_penalty")] + ["top_p", "top_k", "min_p"]
    said = [f"{name}={getattr(sampling, name)}" for name in names if getattr(sampling, name) != getattr(usual, name)]
    return ", ".join(["temperature=0"] * (sampling.temperature == 0) + said)
