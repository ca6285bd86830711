"""The store of captured turns: a tree in SQLite that server, collectors and trainer share; see `Store`.

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
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from slime.errors import ConfigError, StoreError, StoreUnavailable
from slime.private_files import check_private_dir, make_private_dir
from slime.store import leases, notes, opinions, reads, writes
from slime.store.connection import Clock, Connection
from slime.store.leases import Claim
from slime.store.schema import is_store, locate, lock_appends, prepare
from slime.store.writer import Writer
from slime.types import Message, Turn

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]

ANSWER_WITHIN_S = 30.0
"""How long any call may take before its caller is told that the store does not answer."""


MAX_AT_ONCE = 512
"""Messages that one job stores: those of a longer request go before it, so that a group's other callers wait for a few
milliseconds. Should the request never follow, they are contents that no turn names."""


def _writing(job: Callable[Concatenate[Connection, P], T]) -> Method[P, T]:
    """The method that has the writer run a job; it returns once the job's changes are on the disk."""

    @wraps(job)
    async def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._write(lambda connection: job(connection, *args, **kwargs))

    return method


def _reading(look: Callable[Concatenate[Connection, P], T]) -> Method[P, T]:
    """The method that looks at one snapshot, on the reader's thread."""

    @wraps(look)
    async def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._read(lambda connection: look(connection, *args, **kwargs))

    return method


class Store:
    """The store as its callers see it. All methods raise `StoreError` when the disk or a turn does not allow them.

    Most methods are functions of `writes`, `leases`, `opinions`, `reads` and `notes`, which say what they do.
    """

    def __init__(self, path: Path, lock: contextlib.ExitStack | None, clock: Clock) -> None:
        self.path = path
        self._lock = lock
        self._writer = Writer(path, clock)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
        self._read_connection: Connection | None = None

    @classmethod
    def open(cls, location: str | Path, *, appends: bool = True, clock: Clock = time.monotonic) -> Store:
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
            with contextlib.ExitStack() as undo:
                if appends:
                    check_private_dir(path.parent, "--rl-buffer-dir")
                    undo.enter_context(lock_appends(path))
                prepare(path)
                return cls(path, undo.pop_all() if appends else None, clock)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}; choose another --rl-buffer-dir") from error

    @classmethod
    def open_existing(cls, location: str | Path) -> Store:
        """Open a store that another process fills; `ConfigError` if there is none, where `open` would make it."""
        if not is_store(location):
            raise ConfigError(f"{location}: no turns are stored there; give the directory of --rl-buffer-dir")
        return cls.open(location, appends=False)

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was submitted, then let go of the files; `StoreError` if the disk does not answer."""
        await asyncio.to_thread(self._writer.close, ANSWER_WITHIN_S)
        await asyncio.to_thread(self._reader.shutdown)
        if self._read_connection is not None:
            self._read_connection.close()
        if self._lock is not None:
            self._lock.close()

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
            await self._write(partial(writes.put_contents, values=some))
        await self._write(partial(writes.append, turn=turn, next_state_of=next_state_of, keys=keys))

    attach = _writing(writes.attach)
    abort = _writing(writes.abort)
    add_keys = _writing(notes.add_keys)

    # Who works on it.

    async def claim(self, limit: int, owner: str, lease_s: float, *, judged_only: bool = False) -> list[Claim]:
        """Lease up to `limit` turns that can be judged, or are judged and in nobody's queue; oldest first.

        Turns whose record is damaged are excluded on the way and never handed out.

        Args:
            judged_only: leave those that are to be judged where they are.
        """
        job = partial(leases.lease_free, limit=limit, owner=owner, lease_s=lease_s, judged_only=judged_only)
        claims, damaged = await self._read(partial(leases.read_claims, leased=await self._write(job)))
        for turn_id, problem in damaged.items():
            log.error("corrupt turn excluded", extra={"turn_id": turn_id, "problem": problem})
            await self.exclude([turn_id], f"corrupt record: {problem}")
        return claims

    renew = _writing(leases.renew)
    release = _writing(leases.release)

    # What became of it.

    record_verdict = _writing(opinions.record_verdict)
    record_judgements = _writing(opinions.record_judgements)
    revise_verdict = _writing(opinions.revise_verdict)
    add_feedback = _writing(opinions.add_feedback)
    offer = _writing(opinions.offer)
    reconsider = _writing(opinions.reconsider)
    exclude = _writing(writes.exclude)
    mark_trained = _writing(writes.mark_trained)
    rewind = _writing(writes.rewind)
    check_writable = _writing(writes.check_writable)

    # Looks.

    get = _reading(reads.read_turn)
    verdict = _reading(reads.read_verdict)
    judgements = _reading(opinions.read_judgements)
    feedback = _reading(opinions.read_feedback)
    next_states = _reading(reads.read_next_states)
    history = _reading(reads.read_history)
    session = _reading(reads.read_session)
    session_ids = _reading(reads.read_session_ids)

    async def sessions(self, session_ids: Sequence[str] = ()) -> AsyncIterator[tuple[str, list[Turn]]]:
        """Each conversation, or those named, with its turns, in the order in which they began."""
        for session_id in session_ids or await self.session_ids():
            yield session_id, await self.session(session_id)

    changes_after = _reading(reads.read_changes)
    recent = _reading(reads.read_recent)
    newest_notes = _reading(notes.read_newest_notes)
    recall = _reading(notes.read_recalled)
    unkeyed = _reading(notes.read_unkeyed)
    counts = _reading(reads.read_counts)
    exclusions = _reading(opinions.read_exclusions)
    left_out = _reading(reads.read_left_out)
    trained_by = _reading(reads.read_trained)
    trained_at = _reading(reads.read_step)

    async def _write(self, job: Callable[[Connection], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                outcome: T = await self._writer.submit(job)
                return outcome
        except TimeoutError as error:
            raise StoreUnavailable(f"no commit to {self.path} within {ANSWER_WITHIN_S:g} s") from error

    async def _read(self, look: Callable[[Connection], T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await asyncio.get_running_loop().run_in_executor(self._reader, self._look, look)
        except TimeoutError as error:
            raise StoreError(f"no answer from {self.path} within {ANSWER_WITHIN_S:g} s") from error

    def _look(self, look: Callable[[Connection], T]) -> T:
        """Run a look in one snapshot; on the reader's thread."""
        try:
            if self._read_connection is None:
                self._read_connection = Connection(self.path, writes=False)
            with self._read_connection as connection:
                connection.execute("BEGIN")
                return look(connection)
        except sqlite3.Error as error:
            self._read_connection = None
            raise StoreError(f"the turn store cannot read {self.path}: {error}") from error
