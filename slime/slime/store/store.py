"""The turn-tree store: what was said, what came of it, and who works on it now. It survives everything else.

    server ──append──▶ ┌──────────────┐ ◀──claim, record_verdict──── collector
                       │ turns.sqlite3│ ◀──mark_trained, rewind───── trainer side
    status ◀──reads─── └──────────────┘

The server appends; collectors and trainer share the file from their own processes. Every change goes through the
process's one writer thread, which commits in groups and answers after the fsync; reads have a thread and a
connection of their own and never wait for writes.

>>> async with Store.open("rl_buffer") as store:
...     await store.append(turn, next_state_of=("t1", ({"role": "user", "content": "Thanks!"},)))
...     for claim in await store.claim(16, owner="collector", lease_s=300):
...         await store.record_verdict(claim.turn.turn_id, await judge.judge(claim.turn), owner="collector")
...     await store.mark_trained(["t1"], step=1)
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from slime.errors import ConfigError, CorruptRecord, StoreError, StoreUnavailable
from slime.private_files import check_private_dir, make_private_dir
from slime.store import leases, notes, opinions, reads, writes
from slime.store.lineage import Lineage, read_ancestors
from slime.store.notes import Recalled, TurnNote
from slime.store.reads import Changes, LeftOut, Transition, TurnReader
from slime.store.schema import ServerLock, connect, locate, prepare
from slime.store.writer import Writer
from slime.types import Feedback, Judgement, Message, Turn, TurnState, Verdict

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWER_WITHIN_S = 30.0
"""How long any call may take before its caller is told that the store does not answer."""


MAX_AT_ONCE = 512
"""Messages that one job stores: those of a longer request go before it, so that a group's other callers wait for a few
milliseconds. Should the request never follow, they are contents that no turn names."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A turn leased to a collector, with its verdict if an earlier holder got that far, and its newest feedback."""

    turn: Turn
    verdict: Verdict | None
    feedback: Feedback | None = None


class Store:
    """The store as its callers see it. All methods raise `StoreError` when the disk or a turn does not allow them."""

    def __init__(self, path: Path, lock: ServerLock | None, clock: leases.Clock) -> None:
        self.path = path
        self._lock = lock
        self._clock = clock
        self._memory = writes.Memory()
        self._writer = Writer(path, self._memory.forget)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._read_connection: sqlite3.Connection | None = None

    @classmethod
    def open(cls, location: str | Path, *, appends: bool = True, clock: leases.Clock = time.monotonic) -> Store:
        """Open a store, or create an empty one.

        Args:
            location: a directory (the file in it is `turns.sqlite3`), a `.sqlite3` file, or `sqlite://` and either.
            appends: whether this process may append turns; only one at a time may, collectors pass False.
            clock: what leases are counted on; shared by all processes of the machine.

        Raises:
            ConfigError: another server appends there, or the file is not ours, not readable or of another version.
        """
        path = locate(location)
        try:
            make_private_dir(path.parent)
            if appends:
                check_private_dir(path.parent, "--rl-buffer-dir")
            lock = ServerLock(path) if appends else None
            try:
                prepare(path)
            except BaseException:
                if lock is not None:
                    lock.release()
                raise
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}; choose another rl_buffer_dir") from error
        return cls(path, lock, clock)

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was submitted, then let go of the files; `StoreError` if the disk does not answer."""
        await asyncio.to_thread(self._writer.close, ANSWER_WITHIN_S)
        self._reader.submit(self._end_looks)
        await asyncio.to_thread(self._reader.shutdown)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # What enters.

    async def append(
        self,
        turn: Turn,
        *,
        next_state_of: tuple[str, Sequence[Message]] | None = None,
        keys: Sequence[bytes] = (),
    ) -> None:
        """Store a turn; returns after it is on the disk. The same turn again is accepted and changes nothing.

        Args:
            next_state_of: an earlier turn and the messages of this request that answer it. The first to come makes
                that turn ready to be judged; later ones are kept as the continuations of its branches. An unknown
                turn is passed over, so that a reply that was not captured costs none after it.
            keys: digests by which `recall` finds the turn.
        """
        if self._lock is None:
            raise StoreError(f"{self.path} was opened with appends=False")
        for start in range(0, len(turn.messages) - MAX_AT_ONCE, MAX_AT_ONCE):
            some = turn.messages[start : start + MAX_AT_ONCE]
            await self._write(partial(writes.put_contents, memory=self._memory, values=some))
        job = partial(writes.append, memory=self._memory, turn=turn, next_state_of=next_state_of, keys=keys)
        await self._write(job)

    async def attach(self, turn_id: str, next_state: Sequence[Message]) -> None:
        """Say what followed a turn, where no later request says it."""
        await self._write(partial(writes.attach, memory=self._memory, turn_id=turn_id, next_state=next_state))

    async def abort(self, turn_id: str, reason: str) -> None:
        """A stored reply never reached its client: SERVED → ABORTED."""
        await self._write(partial(writes.abort, turn_id=turn_id, reason=reason))

    async def add_keys(self, keys: Mapping[str, Sequence[bytes]], below: int) -> None:
        """Give stored turns keys, by turn id; `below` is what `unkeyed` said."""
        await self._write(partial(notes.add_keys, keys=keys, below=below))

    # Who works on it.

    async def claim(self, limit: int, owner: str, lease_s: float, *, judged_only: bool = False) -> list[Claim]:
        """Lease up to `limit` turns that can be judged, or are judged and in nobody's queue; oldest first.

        Turns whose record is damaged are excluded on the way and never handed out.

        Args:
            judged_only: leave those that are to be judged where they are.
        """
        job = partial(leases.claim, limit=limit, owner=owner, lease_s=lease_s, clock=self._clock)
        seqs = await self._write(partial(job, judged_only=judged_only))
        claims, damaged = await self._read(partial(_read_claims, seqs=seqs))
        for turn_id, problem in damaged:
            log.error("corrupt turn excluded", extra={"turn_id": turn_id, "problem": problem})
            await self.exclude([turn_id], f"corrupt record: {problem}")
        return claims

    async def renew(self, turn_ids: Sequence[str], owner: str, lease_s: float) -> None:
        """Hold these turns for `lease_s` more seconds from now; `LeaseLost` if one of them was taken over."""
        await self._write(
            partial(leases.renew, turn_ids=tuple(turn_ids), owner=owner, lease_s=lease_s, clock=self._clock)
        )

    async def release(self, owner: str, turn_ids: Sequence[str] | None = None) -> int:
        """Free what `owner` holds of these turns, or everything, e.g. of before it was restarted; returns how many."""
        chosen = None if turn_ids is None else frozenset(turn_ids)
        return await self._write(partial(leases.release, owner=owner, turn_ids=chosen))

    # What became of it.

    async def record_verdict(
        self, turn_id: str, verdict: Verdict, owner: str, *, feedback: Feedback | None = None
    ) -> bool:
        """CLAIMED → JUDGED, still leased; a verdict that says nothing → EXCLUDED with the reason.

        Its judgements are kept beside it, for ever and over later verdicts.

        Args:
            feedback: the newest that the verdict takes into account.

        Returns:
            False, with nothing stored, if the turn has newer feedback: it is to be judged again.

        Raises:
            LeaseLost: somebody else holds the turn now; their verdict counts.
        """
        known = 0 if feedback is None else feedback.number
        return await self._write(
            partial(
                opinions.record_verdict,
                memory=self._memory,
                turn_id=turn_id,
                verdict=verdict,
                owner=owner,
                feedback_id=known,
            )
        )

    async def record_judgements(self, turn_id: str, judgements: Sequence[Judgement]) -> None:
        """Keep what judges said of a turn, without making a verdict of it."""
        await self._write(
            partial(opinions.record_judgements, memory=self._memory, turn_id=turn_id, judgements=tuple(judgements))
        )

    async def revise_verdict(self, turn_id: str, verdict: Verdict) -> bool:
        """Put another judge's verdict in place of the first one's, or of none; its judgements are kept in any case.

        Returns:
            False, and the turn stays as it is, if it is trained, held by a collector, excluded for another reason than
            its verdict, not to be trained at all, or judged by a person.
        """
        return await self._write(
            partial(opinions.revise_verdict, memory=self._memory, turn_id=turn_id, verdict=verdict)
        )

    async def offer(self, turn_id: str) -> bool:
        """SERVED → READY without a next state: there is another way to judge it. False if it is not SERVED."""
        return await self._write(partial(opinions.offer, turn_id=turn_id))

    async def add_feedback(self, turn_id: str, feedback: Feedback) -> Feedback:
        """Store what a person said of a turn, and have it judged by that; returns it with its number and time.

        SERVED → READY, without a next state; a verdict that stands and is in nobody's hands, or made the turn
        EXCLUDED, gives way: → READY. What a collector holds is noticed by it; what is TRAINED stays as it is.
        """
        return await self._write(partial(opinions.add_feedback, turn_id=turn_id, feedback=feedback))

    async def reconsider(self, turn_ids: Sequence[str], owner: str) -> tuple[str, ...]:
        """Which of these judged turns got feedback after their verdict: they are READY again and nobody's."""
        return await self._write(partial(opinions.reconsider, turn_ids=tuple(turn_ids), owner=owner))

    async def exclude(self, turn_ids: Sequence[str], reason: str) -> None:
        """Never train these turns; those excluded already keep their first reason."""
        await self._write(partial(writes.exclude, turn_ids=tuple(turn_ids), reason=reason))

    async def reopen_unjudged(self, limit: int = 1000) -> int:
        """After a judge was out: EXCLUDED for want of a verdict → READY; returns how many turns."""
        return await self._write(partial(opinions.reopen_unjudged, limit=limit))

    async def mark_trained(self, turn_ids: Sequence[str], step: int) -> None:
        """JUDGED → TRAINED, all or none; the same call again changes nothing, another step is refused."""
        await self._write(partial(writes.mark_trained, turn_ids=tuple(turn_ids), step=step))

    async def rewind(self, step: int) -> int:
        """Resume from the checkpoint of `step`: what was trained later is JUDGED and free again; returns how many."""
        return await self._write(partial(writes.rewind, step=step))

    async def check_writable(self) -> None:
        """Commit a write that changes nothing; `StoreError` if the disk, or another process, does not let us."""
        await self._write(writes.rewrite_header)

    # Looks.

    async def get(self, turn_id: str) -> Turn | None:
        """The turn, or None; `CorruptRecord` if it is not what was given any more."""
        return await self._read(partial(reads.read_turn, turn_id=turn_id))

    async def verdict(self, turn_id: str) -> Verdict | None:
        """The last verdict on a turn, if it has one."""
        return await self._read(partial(reads.read_verdict, turn_id=turn_id))

    async def judgements(self, turn_id: str) -> list[Judgement]:
        """Everything any judge ever said of a turn, oldest first."""
        return await self._read(partial(opinions.read_judgements, turn_id=turn_id))

    async def feedback(self, turn_id: str) -> list[Feedback]:
        """Everything a person said of a turn outside the conversation, oldest first; the last one counts."""
        return await self._read(partial(opinions.read_feedback, turn_id=turn_id))

    async def session(self, session_id: str) -> list[Turn]:
        """The turns of a conversation in the order they were stored, damaged ones left out."""
        return await self._read(partial(reads.read_session, session_id=session_id))

    async def session_ids(self) -> list[str]:
        """Every conversation, in the order in which they began."""
        return await self._read(reads.read_session_ids)

    async def changes_after(self, seen: Changes) -> tuple[Changes, list[str]]:
        """Which conversations went on since a look that came as far as `seen`; `Changes()` is the very beginning."""
        return await self._read(partial(reads.read_changes, after=seen))

    async def recent(self, limit: int) -> list[Turn]:
        """The newest `limit` turns, oldest of them first."""
        return await self._read(partial(reads.read_recent, limit=limit))

    async def newest_notes(self, limit: int) -> list[TurnNote]:
        """The newest `limit` turns without what is long, oldest of them first."""
        return await self._read(partial(notes.read_newest_notes, limit=limit))

    async def recall(
        self, keys: Sequence[bytes], turn_ids: Sequence[str] = (), session_ids: Sequence[str] = ()
    ) -> Recalled:
        """The turns with these keys or ids, the newest of each session they are in, and how sessions began."""
        return await self._read(partial(notes.read_recalled, keys=keys, turn_ids=turn_ids, session_ids=session_ids))

    async def unkeyed(self, limit: int) -> tuple[int, list[TurnNote]]:
        """The newest turns that were stored before there were keys; see `notes.read_unkeyed`."""
        return await self._read(partial(notes.read_unkeyed, limit=limit))

    async def next_states(self, turn_id: str) -> list[tuple[str | None, tuple[Message, ...]]]:
        """Every continuation of a turn, with the turn whose request brought it; the first is `Turn.next_state`."""
        return await self._read(partial(reads.read_next_states, turn_id=turn_id))

    async def history(self, turn_id: str) -> list[Transition]:
        """All moves of a turn, from its birth on."""
        return await self._read(partial(reads.read_history, turn_id=turn_id))

    async def counts(self) -> dict[TurnState, int]:
        """How many turns stand in each state; every state is a key."""
        return await self._read(reads.read_counts)

    async def exclusions(self, limit: int = 5) -> dict[str, int]:
        """How many turns are excluded for which reason, the commonest first: `{"unjudged": 12, "score 0": 3}`."""
        return await self._read(partial(opinions.read_exclusions, limit=limit))

    async def left_out(self, after: int | None = None) -> LeftOut:
        """How many turns were excluded, for which reasons, since a look that came as far as `after`."""
        return await self._read(partial(reads.read_left_out, after=after))

    async def trained_by(self, step: int) -> tuple[str, ...]:
        """Lineage downwards: the turns that update `step` consumed."""
        return await self._read(partial(reads.read_trained, step=step))

    async def trained_at(self, turn_id: str) -> int | None:
        """Lineage upwards: the update that consumed the turn."""
        return await self._read(partial(reads.read_step, turn_id=turn_id))

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                outcome: T = await self._writer.submit(job)
                return outcome
        except TimeoutError as error:
            raise StoreUnavailable(f"no commit to {self.path} within {ANSWER_WITHIN_S:g} s") from error

    async def _read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await asyncio.get_running_loop().run_in_executor(self._reader, self._look, look)
        except TimeoutError as error:
            raise StoreError(f"no answer from {self.path} within {ANSWER_WITHIN_S:g} s") from error

    def _end_looks(self) -> None:
        if self._read_connection is not None:
            self._read_connection.close()
            self._read_connection = None

    def _look(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Run a look in one snapshot; on the reader's thread."""
        try:
            if self._read_connection is None:
                self._read_connection = connect(self.path, writes=False)
            self._read_connection.execute("BEGIN")
            try:
                return look(self._read_connection)
            finally:
                self._read_connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._read_connection = None
            raise StoreError(f"the turn store cannot read {self.path}: {error}") from error


def _read_claims(connection: sqlite3.Connection, seqs: Sequence[int]) -> tuple[list[Claim], list[tuple[str, str]]]:
    """Claims of the turns that can be read; id and problem of those that cannot."""
    reader = TurnReader(connection)
    claims: list[Claim] = []
    damaged: list[tuple[str, str]] = []
    known: Lineage = {}
    for seq in seqs:
        (turn_id,) = connection.execute("SELECT turn_id FROM turns WHERE seq = ?", (seq,)).fetchone()
        try:
            turn = reader.turn(seq)
            verdict = reads.read_verdict(connection, turn_id) if turn.state is TurnState.JUDGED else None
            feedback = opinions.read_feedback(connection, turn_id)
            turn = replace(turn, ancestors=read_ancestors(connection, turn_id, known))
            claims.append(Claim(turn, verdict, feedback[-1] if feedback else None))
        except CorruptRecord as error:
            damaged.append((turn_id, str(error)))
    return claims, damaged
