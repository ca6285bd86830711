"""Import of recorded conversations: they become turns of the store, which the live rollout takes like any other.

    --data-path ─ read ─▶ Conversation ─ chat template ─▶ prompt ids, reply ids ─ Engine.score ─▶ Turn, READY ─▶ Store
                              └─ exported: stored as it was, with the ids and log-probs of when it was sampled

Missing ids are the chat template's, and missing log-probs are recomputed with the policy as it is served at the start:
learning is off-policy from the first step on, and importance ratios measure how far the policy has moved since. The
turn's details say so. Turn ids are content hashes, so an import is idempotent and resumes where it was interrupted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from slime.chat import ChatFormat
from slime.config.sections import Config
from slime.data.conversation_files import (
    Conversation,
    RecordedTurn,
    conversation_files,
    parse_conversation,
    read_conversations,
)
from slime.errors import EngineRejected, RenderError
from slime.protocols import Engine, TokenScores
from slime.store import Store, is_store
from slime.store.records import encode_json
from slime.tools.transfer import adopt, export_sessions
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan

log = logging.getLogger(__name__)

SOURCE = "conversations"
"""Whose turns share a baseline, where a file does not say."""
_REPORT_EVERY = 500


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of the conversations, in turns.

    Attributes:
        stored: new in the store; of these, `rescored` got their log-probs from the policy.
        known: there already.
        left_out: why, and how many: `{"nothing followed": 12}`.
    """

    stored: int
    rescored: int
    known: int
    left_out: dict[str, int]


async def import_data_path(config: Config, store: Store, engine: Engine) -> Imported:
    """Store every conversation of `--data-path`: a file, a directory of files, or another store.

    Args:
        engine: the policy; scores replies that have no log-probs.

    Raises:
        ConfigError: a file is not understood; its place is named.
        EngineUnavailable: the engine went away; what is stored by then is kept, and the same call goes on from there.
    """
    path, min_turns = Path(config.rollout.data_path), config.rollout.min_turns
    counted: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    score = partial(engine.score, adapter=config.lora.shared_adapter)
    scorer = _Scorer(store, ChatFormat.load(config.model.model_path), score, counted, left_out)
    room = asyncio.Semaphore(config.judge.num_judge_workers)  # conversations in work at once

    async def take(conversation: Conversation) -> None:
        left_out["side turn"] += conversation.num_side
        if sum(turn.is_trainable or turn.record is None for turn in conversation.turns) < min_turns:
            left_out[f"fewer than {min_turns} turns in its conversation"] += len(conversation.turns)
        elif any(turn.record is not None for turn in conversation.turns):
            adopted = await adopt(store, conversation, with_verdicts=False)  # this run has a judge of its own
            counted.update(stored=adopted.stored, known=adopted.known)
        else:
            await scorer.store_scored(conversation)
        counted["conversations"] += 1
        if counted["conversations"] % _REPORT_EVERY == 0:
            log.info("conversations read number=%d turns=%d", counted["conversations"], counted["stored"])
        room.release()

    try:
        async with asyncio.TaskGroup() as importing:
            async for conversation in _conversations(path):
                await room.acquire()
                importing.create_task(take(conversation))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    imported = Imported(counted["stored"], counted["rescored"], counted["known"], dict(+left_out))
    log.info("conversations imported path=%s %s", path, imported)
    if imported.rescored:
        log.warning(
            "no log-probs were recorded with %d replies: they were recomputed by the policy at the start, "
            "and learning from them is off-policy",
            imported.rescored,
        )
    return imported


def check_conversations(path: Path) -> None:
    """Raises ConfigError, in one line, if there is nothing to read at `path`; its contents are not looked at."""
    if not is_store(path):
        conversation_files(path)


async def _conversations(path: Path) -> AsyncIterator[Conversation]:
    if not is_store(path):
        for conversation in read_conversations(path):
            yield conversation
        return
    async with Store.open(path, appends=False) as source:
        async for session in export_sessions(source):
            yield parse_conversation(session, f"{path}: session {session['session_id']}")


@dataclass(frozen=True, slots=True)
class _Scorer:
    """Stores conversations of which only the text was recorded, and counts what became of their turns."""

    store: Store
    chat: ChatFormat
    score: Callable[[Sequence[int], int], Awaitable[TokenScores]]
    counted: Counter[str]
    left_out: Counter[str]

    async def store_scored(self, conversation: Conversation) -> None:
        """The turns of one conversation, in order: a prompt reuses the ids of the turn that it goes on from."""
        before: Turn | None = None
        for number, recorded in enumerate(conversation.turns, 1):
            goes_on = before is not None and _goes_on(recorded, before)
            try:
                turn = _unscored(conversation, number, recorded, self.chat, before if goes_on else None)
            except RenderError as error:
                log.warning("turn left out place=%s turn=%d error=%s", conversation.place, number, error)
                self.left_out["the chat template refuses it"] += 1
                before = None
                continue
            before = turn
            if not (recorded.is_trainable and recorded.next_state):
                self.left_out["nothing followed" if recorded.is_trainable else "not trainable"] += 1
            elif (stored := await self.store.get(turn.turn_id)) is not None:
                before = stored
                self.counted["known"] += 1
            else:
                try:
                    before = await self._scored(turn)
                    await self.store.append(before)
                    self.counted.update(stored=1, rescored=1)
                except EngineRejected as error:  # longer than the engine's context, say
                    log.warning("turn left out place=%s turn=%d error=%s", conversation.place, number, error)
                    self.left_out["the engine refuses it"] += 1

    async def _scored(self, turn: Turn) -> Turn:
        token_ids = turn.completion.token_ids
        scores = await self.score((*turn.prompt_ids, *token_ids), len(turn.prompt_ids))
        said = f"recomputed by the policy of version {scores.version}: none were recorded"
        completion = replace(
            turn.completion,
            logprobs=tuple(min(0.0, value) for value in scores.logprobs),
            spans=(VersionSpan(scores.version, 0, len(token_ids)),),
        )
        return replace(turn, completion=completion, details={**turn.details, "logprobs": said})


def _goes_on(recorded: RecordedTurn, before: Turn) -> bool:
    context = (*before.messages, before.reply)
    return recorded.messages[: len(context)] == context


def identity(session_id: str, number: int, recorded: RecordedTurn) -> str:
    """A turn id that the same turn has wherever it is read: `f` and 20 hexadecimal digits."""
    said = encode_json([session_id, number, *recorded.messages, recorded.reply, *(recorded.next_state or ())])
    return "f" + hashlib.blake2b(said, digest_size=10).hexdigest()


def tokens_of(
    chat: ChatFormat, recorded: RecordedTurn, prior: Turn | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of a recorded request and of its reply, as the model's own template writes them, stop token included.

    Raises:
        RenderError: the template cannot express the request or the reply.
    """
    prompt_ids = chat.render(recorded.messages, recorded.tools, prior)
    whole = chat.render((*recorded.messages, recorded.reply), recorded.tools, prior)
    reply_ids = whole[len(prompt_ids) :] if whole[: len(prompt_ids)] == prompt_ids else ()
    ends = [index for index, token_id in enumerate(reply_ids) if token_id in chat.stop_token_ids]
    if ends:
        return prompt_ids, reply_ids[: ends[0] + 1]
    content = recorded.reply.get("content")
    if not isinstance(content, str) or not content or recorded.reply.get("tool_calls"):
        raise RenderError("the template writes this reply otherwise than the model would")
    return prompt_ids, (*chat.encode_plain(content), *chat.stop_token_ids)


def _unscored(
    conversation: Conversation, number: int, recorded: RecordedTurn, chat: ChatFormat, parent: Turn | None
) -> Turn:
    """A recorded turn with the template's ids, and zeros where its log-probs are to be."""
    prompt_ids, reply_ids = tokens_of(chat, recorded, parent)
    content = recorded.reply.get("content")
    text = content if isinstance(content, str) else ""
    spans = (VersionSpan(0, 0, len(reply_ids)),)
    return Turn(
        turn_id=identity(conversation.session_id, number, recorded),
        session_id=conversation.session_id,
        parent_id=None if parent is None else parent.turn_id,
        kind=TurnKind.MAIN,
        messages=recorded.messages,
        prompt_ids=prompt_ids,
        completion=Completion(reply_ids, (0.0,) * len(reply_ids), text, "stop", spans),
        sampling=SamplingParams(),
        reply=recorded.reply,
        tools=recorded.tools,
        next_state=recorded.next_state,
        source=conversation.source or SOURCE,
        details={
            "session_source": "file",
            "file": conversation.place,
            "token_ids": "of the chat template: only the text was recorded",
        },
    )
