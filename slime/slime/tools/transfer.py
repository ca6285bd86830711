"""Transfer of sessions from one store to another: every turn as it was, its ids, log-probs and verdict included.

    Store ─ export_sessions ─▶ one JSON object a session ─ read_conversations ─▶ RecordedTurn ─ adopt ─▶ Store

The object is a conversation of the published format (`data.conversation_files`), so whoever reads that reads this. What
the format has no word for stands in each turn's `record`; ids and messages that a turn shares with the one before it
are not written twice. What a store did with a turn (claims, updates) stays with the store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from slime.data.conversation_files import Conversation, RecordedTurn, read_conversations
from slime.errors import ConfigError
from slime.store import Store
from slime.store.records import (
    body_of,
    encode_json,
    pack_ids,
    shared_ids,
    turn_from,
    verdict_fields,
    verdict_from,
)
from slime.types import Turn, TurnKind, TurnState


async def export_sessions(store: Store, session_ids: Sequence[str] = ()) -> AsyncIterator[dict[str, Any]]:
    """Each session (or those named) as a JSON object, in the order in which they began.

    Raises:
        ConfigError: a session that is named is not stored.
    """
    async for session_id, turns in store.sessions(session_ids):
        if not turns:
            raise ConfigError(f"{store.path}: no session {session_id}")
        written = []
        before: Turn | None = None
        for turn in turns:
            written.append(await _written(store, turn, before))
            before = turn if turn.kind.is_trainable else before
        yield {"session_id": session_id, "turns": written}


async def _written(store: Store, turn: Turn, before: Turn | None) -> dict[str, Any]:
    """One turn; `before` is the main turn before it in the session."""
    born = (await store.history(turn.turn_id))[0].target
    is_final = turn.state is TurnState.ABORTED or turn.state is born is TurnState.EXCLUDED
    state = turn.state if is_final else TurnState.SERVED
    context = () if before is None else (*before.messages, before.reply)
    goes_on = len(turn.messages) > len(context) > 0 and turn.messages[: len(context)] == context
    value: dict[str, Any] = {
        "type": "main" if turn.kind.is_trainable else "side",
        "prompt": list(turn.messages[len(context) if goes_on else 0 :]),
        "response": turn.reply,
        "trainable": turn.kind.is_trainable and state is TurnState.SERVED,
    }
    value |= {"goes_on": True} if goes_on else {}
    value |= {"next_state": list(turn.next_state)} if turn.next_state else {}
    verdict = await store.verdict(turn.turn_id)
    kept = shared_ids(pack_ids(_fed(before)), pack_ids(turn.prompt_ids))
    record = body_of(turn)
    record |= {
        "turn_id": turn.turn_id,
        "parent_id": turn.parent_id,
        "kind": turn.kind,
        "state": state,
        "created_at": turn.created_at,
        "prompt_ids": list(turn.prompt_ids[kept:]),
        "prompt_ids_kept": kept,
        "token_ids": list(turn.completion.token_ids),
        "logprobs": list(turn.completion.logprobs),
        "text": turn.completion.text,
        "versions": record.pop("spans"),
        "reason": turn.reason if state is turn.state else "",  # else it is of the store that excluded the turn
        "next_states": await store.next_states(turn.turn_id),
        "verdict": None if verdict is None else verdict_fields(verdict),
    }
    return value | {"tools": list(turn.tools), "record": record}


def _fed(before: Turn | None) -> tuple[int, ...]:
    """What a turn that goes on from that one was fed at least."""
    return () if before is None else before.prompt_ids + before.completion.token_ids


@dataclasses.dataclass(frozen=True, slots=True)
class Adopted:
    """What became of a session: turns stored, and turns that were there already."""

    stored: int
    known: int


async def adopt(store: Store, conversation: Conversation, *, with_verdicts: bool = True) -> Adopted:
    """Store a session that was exported, turn by turn as it was; harmless a second time.

    Args:
        with_verdicts: without, its turns are to be judged anew.

    Raises:
        ConfigError: a turn was not exported, or its record is damaged.
        StoreError: another turn has the same id.
    """
    turns = list(_restored(conversation))
    names = {turn.turn_id for turn, _ in turns}
    answers = {  # by the turn whose request brought it
        from_turn: (turn.turn_id, tuple(messages))
        for turn, record in turns
        for from_turn, messages in record["next_states"]
        if from_turn in names
    }
    stored = 0
    for turn, record in turns:
        stored += await store.get(turn.turn_id) is None
        # The same turn again is accepted and changes nothing, another one under its id is refused.
        await store.append(turn, next_state_of=answers.get(turn.turn_id))
        brought = [tuple(messages) for from_turn, messages in record["next_states"] if from_turn not in names]
        known = [messages for _, messages in await store.next_states(turn.turn_id)] if brought else []
        for messages in brought:
            if messages not in known:
                await store.attach(turn.turn_id, messages)
    for turn, record in turns:
        said = record.get("verdict") if with_verdicts else None
        if said is not None and await store.verdict(turn.turn_id) is None:
            await store.revise_verdict(turn.turn_id, verdict_from(said))
    return Adopted(stored, len(turns) - stored)


def _restored(conversation: Conversation) -> Iterator[tuple[Turn, Mapping[str, Any]]]:
    """Each turn of an exported session, with its record."""
    before: Turn | None = None
    for number, recorded in enumerate(conversation.turns, 1):
        place = f"{conversation.place}: turn {number}"
        if recorded.record is None:
            raise ConfigError(f"{place}: it was not exported; --data-path trains on conversations without ids")
        try:
            turn = _turn(conversation.session_id, recorded, recorded.record, before)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{place}: its record is damaged: {type(error).__name__}: {error}") from error
        yield turn, recorded.record
        before = turn if turn.kind.is_trainable else before


def _turn(session_id: str, recorded: RecordedTurn, record: Mapping[str, Any], before: Turn | None) -> Turn:
    kept, fed = int(record["prompt_ids_kept"]), _fed(before)
    if kept > len(fed):
        raise ValueError(f"it keeps {kept} ids of a turn that has {len(fed)}")
    return turn_from(
        {**record, "spans": record["versions"]},
        token_ids=record["token_ids"],
        logprobs=record["logprobs"],
        reply=recorded.reply,
        **{name: record[name] for name in ("turn_id", "parent_id", "created_at")},
        session_id=session_id,
        kind=TurnKind(record["kind"]),
        state=TurnState(record["state"]),
        messages=recorded.messages,
        prompt_ids=fed[:kept] + tuple(record["prompt_ids"]),
        tools=recorded.tools,
    )


# ── Files ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def write_sessions(store: Store, session_ids: Sequence[str], file: BinaryIO) -> int:
    """Write sessions of a store as JSON lines, all of them if none is named, and close it; returns how many."""
    number = 0
    async with store:
        async for session in export_sessions(store, session_ids):
            file.write(encode_json(session) + b"\n")
            number += 1
    return number


async def read_sessions(path: Path, buffer_dir: Path) -> Adopted:
    """Store what `write_sessions` wrote, from a file or a directory of files. Raises as `adopt` does."""
    stored = known = 0
    async with Store.open(buffer_dir) as store:
        for conversation in read_conversations(path):
            adopted = await adopt(store, conversation)
            stored, known = stored + adopted.stored, known + adopted.known
    return Adopted(stored, known)
