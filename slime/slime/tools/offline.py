"""Recorded conversations as turns of the store, which the live rollout takes like any other.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slime.chat import ChatFormat
from slime.config import Config
from slime.data.conversation_files import (
    Conversation,
    RecordedTurn,
    conversation_files,
    parse_conversation,
    read_conversations,
)
from slime.errors import EngineRejected, RenderError
from slime.protocols import Engine, TokenScores
from slime.store import Store
from slime.store.records import encode_json
from slime.tools.transfer import adopt, export_sessions, is_store
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan

log = logging.getLogger(__name__)

SOURCE = "conversations"
"""Whose turns share a baseline, where a file does not say."""
_REPORT_EVERY = 500

_Score = Callable[[Sequence[int], int], Awaitable[TokenScores]]


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
    """What `--data-path` holds, stored; `engine` is the policy, which scores replies without recorded log-probs."""
    return await import_conversations(
        Path(config.rollout.data_path),
        store,
        ChatFormat.load(config.model.model_path),
        engine,
        adapter=config.lora.shared_adapter,
        min_turns=config.rollout.min_turns,
        num_workers=config.judge.num_judge_workers,
    )


async def import_conversations(
    path: Path,
    store: Store,
    chat: ChatFormat,
    engine: Engine,
    *,
    adapter: str = "",
    min_turns: int = 1,
    num_workers: int = 4,
) -> Imported:
    """Store every conversation of a file, of a directory of files, or of another store.

    Args:
        engine: the policy; scores replies that have no log-probs.
        adapter: whose log-probs they are, as in a `GenerateRequest`.
        min_turns: conversations with fewer main turns are left out.
        num_workers: conversations in work at once.

    Raises:
        ConfigError: a file is not understood; its place is named.
        EngineUnavailable: the engine went away; what is stored by then is kept, and the same call goes on from there.
    """
    score = partial(engine.score, adapter=adapter)
    counted: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    importing: set[asyncio.Task[None]] = set()

    async def take(conversation: Conversation) -> None:
        left_out["side turn"] += conversation.num_side
        if sum(turn.is_trainable or turn.record is None for turn in conversation.turns) < min_turns:
            left_out[f"fewer than {min_turns} turns in its conversation"] += len(conversation.turns)
        elif any(turn.record is not None for turn in conversation.turns):
            adopted = await adopt(store, conversation, with_verdicts=False)  # this run has a judge of its own
            counted.update(stored=adopted.stored, known=adopted.known)
        else:
            await _score_and_store(conversation, store, chat, score, counted, left_out)
        counted["conversations"] += 1
        if counted["conversations"] % _REPORT_EVERY == 0:
            log.info("conversations read number=%d turns=%d", counted["conversations"], counted["stored"])

    try:
        async for conversation in _conversations(path):
            if len(importing) >= num_workers:
                done, importing = await asyncio.wait(importing, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            importing.add(asyncio.create_task(take(conversation)))
        for task in importing:
            await task
    finally:
        for task in importing:
            task.cancel()
        await asyncio.gather(*importing, return_exceptions=True)
    reasons = {reason: number for reason, number in left_out.items() if number}
    log.info(
        "conversations imported path=%s stored=%d rescored=%d known=%d left_out=%s",
        *(path, counted["stored"], counted["rescored"], counted["known"], reasons),
    )
    if counted["rescored"]:
        log.warning(
            "no log-probs were recorded with %d replies: they were recomputed by the policy at the start, "
            "and learning from them is off-policy",
            counted["rescored"],
        )
    return Imported(counted["stored"], counted["rescored"], counted["known"], reasons)


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


async def _score_and_store(
    conversation: Conversation,
    store: Store,
    chat: ChatFormat,
    score: _Score,
    counted: Counter[str],
    left_out: Counter[str],
) -> None:
    """The turns of one conversation, in order: a prompt reuses the ids of the turn that it goes on from."""
    prior: Turn | None = None
    for number, recorded in enumerate(conversation.turns, 1):
        turn_id = identity(conversation.session_id, number, recorded)
        goes_on = prior is not None and recorded.messages[: len(prior.messages) + 1] == (*prior.messages, prior.reply)
        try:
            ids = tokens_of(chat, recorded, prior if goes_on else None)
        except RenderError as error:
            log.warning("turn left out place=%s turn=%d error=%s", conversation.place, number, error)
            left_out["the chat template refuses it"] += 1
            prior = None
            continue
        parent_id = prior.turn_id if prior is not None and goes_on else None
        reason = _why_not(recorded)
        stored = None if reason else await store.get(turn_id)
        if reason:
            left_out[reason] += 1
        elif stored is not None:
            counted["known"] += 1
        turn = stored or _turn(conversation, recorded, turn_id, parent_id, ids, (0.0,) * len(ids[1]), 0)
        if not reason and stored is None:
            try:
                scores = await score((*ids[0], *ids[1]), len(ids[0]))
            except EngineRejected as error:  # longer than the engine's context, say
                log.warning("turn left out place=%s turn=%d error=%s", conversation.place, number, error)
                left_out["the engine refuses it"] += 1
            else:
                turn = _turn(conversation, recorded, turn_id, parent_id, ids, scores.logprobs, scores.version)
                await store.append(turn)
                counted.update(stored=1, rescored=1)
        prior = turn


def _why_not(recorded: RecordedTurn) -> str:
    if not recorded.is_trainable:
        return "not trainable"
    return "" if recorded.next_state else "nothing followed"


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


def _turn(
    conversation: Conversation,
    recorded: RecordedTurn,
    turn_id: str,
    parent_id: str | None,
    ids: tuple[Sequence[int], Sequence[int]],
    logprobs: Sequence[float],
    version: int,
) -> Turn:
    prompt_ids, reply_ids = ids
    content = recorded.reply.get("content")
    return Turn(
        turn_id=turn_id,
        session_id=conversation.session_id,
        parent_id=parent_id,
        kind=TurnKind.MAIN,
        messages=recorded.messages,
        prompt_ids=tuple(prompt_ids),
        completion=Completion(
            tuple(reply_ids),
            tuple(min(0.0, value) for value in logprobs),
            content if isinstance(content, str) else "",
            "stop",
            (VersionSpan(version, 0, len(reply_ids)),),
        ),
        sampling=SamplingParams(),
        reply=recorded.reply,
        tools=recorded.tools,
        next_state=recorded.next_state,
        source=conversation.source or SOURCE,
        details={
            "session_source": "file",
            "file": conversation.place,
            "token_ids": "of the chat template: only the text was recorded",
            "logprobs": f"recomputed by the policy of version {version}: none were recorded",
        },
    )
