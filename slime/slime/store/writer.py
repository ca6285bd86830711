"""The writer thread: group commit, so that jobs that wait share one fsync.

    append ─┐                        ┌─ BEGIN IMMEDIATE ─ job ─ job ─ job ─ COMMIT (fsync) ─┐
    claim  ─┼─▶ queue ─▶ all waiting ┤                                                      ├─▶ awaiting callers
    attach ─┘                        └─ failed: every job of the group gets a StoreError ───┘

While one group is on its way to the disk the next one gathers, so the number of fsyncs follows the disk and
not the number of callers. A job runs inside a savepoint: one that is refused takes nothing down with it.

After a failed write nothing is retried behind the callers' backs: they are told, and the next group starts on
ground that is known to be good (see `_recover`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slime.errors import OpenClawError, StoreError, StoreUnavailable
from slime.store.connection import Clock, Connection

log = logging.getLogger(__name__)

Job = Callable[[Connection], Any]
Ticket = tuple[Job, asyncio.Future[Any]]
Outcome = tuple[Any, BaseException | None]

MAX_GROUP = 256
"""Jobs in one transaction: bounds how long other processes wait for their turn."""

LOCK_WAIT_S = 10.0
"""How long a group waits for another process's transaction before its callers are told that it failed."""

LOCK_POLL_S = 0.001
"""SQLite's own waiting backs off to 100 ms and starves behind a busy writer; transactions here last a few ms."""


class Writer:
    """Runs jobs, in the order they came, on a thread and a connection of its own."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._is_suspect = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> asyncio.Future[Any]:
        """Queue a job; the future has its result once it is on the disk."""
        if self._is_closed:
            raise StoreError("the store is closed")
        future = asyncio.get_running_loop().create_future()
        self._queue.put((job, future))
        return future

    def close(self, timeout_s: float) -> None:
        """Finish what was submitted and end the thread."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StoreError(f"the store's writer did not end within {timeout_s:g} s; the disk does not answer")

    def _run(self) -> None:
        ends = False
        while not ends:
            group = [self._queue.get()]
            group += [self._queue.get() for _ in range(min(self._queue.qsize(), MAX_GROUP - 1))]
            ends = None in group
            tickets = [ticket for ticket in group if ticket is not None]
            if tickets:
                _deliver(tickets, self._commit(tickets))
        if self._connection is not None:
            self._connection.close()

    def _commit(self, tickets: list[Ticket]) -> list[Outcome]:
        """One transaction for all of them; either every outcome is on the disk or every one is a failure."""
        try:
            connection = self._begin()
            outcomes = [self._attempt(connection, job) for job, _ in tickets]
            connection.execute("COMMIT")
            return outcomes
        except sqlite3.Error as error:
            self._abandon(error)
            problem = f"the turn store cannot write {self._path}: {error}"
            return [(None, StoreUnavailable(problem)) for _ in tickets]

    def _begin(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._path, writes=True, clock=self._clock)
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                if self._is_suspect:
                    self._recover(self._connection)
                self._connection.execute("BEGIN IMMEDIATE")
                return self._connection
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(LOCK_POLL_S * (0.5 + random.random()))

    def _attempt(self, connection: Connection, job: Job) -> Outcome:
        connection.execute("SAVEPOINT job")
        try:
            outcome: Outcome = job(connection), None
        except (sqlite3.OperationalError, sqlite3.InternalError):
            raise  # the disk, not the job
        except Exception as error:
            if type(error) is sqlite3.DatabaseError:
                raise  # a damaged file
            connection.execute("ROLLBACK TO job")
            connection.forget()
            outcome = None, error if isinstance(error, OpenClawError) else _as_store_error(error)
        connection.execute("RELEASE job")
        return outcome

    def _abandon(self, error: sqlite3.Error) -> None:
        """Undo a group that failed. After anything but a lock or a full disk the connection is not trusted again."""
        log.error("store write failed", extra={"error": str(error), "code": getattr(error, "sqlite_errorname", "")})
        if self._connection is None:
            return
        self._connection.forget()
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if _is_busy(error) or _is_full(error):
                return
        except sqlite3.Error as rollback_error:
            log.error("store rollback failed", extra={"error": str(rollback_error)})
        self._is_suspect = True
        self._connection.close()
        self._connection = None

    def _recover(self, connection: Connection) -> None:
        """Make sure that nothing later stands on log pages that never reached the disk.

        After a failed fsync the kernel takes those pages for clean: a later fsync succeeds without writing them,
        and a commit appended behind them would be lost with them. So the whole log is copied into the database
        file, which is written and synced anew, and starts again at its beginning.
        """
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("database is locked: the log cannot be renewed while others use it")
        self._is_suspect = False


def _as_store_error(error: Exception) -> StoreError:
    wrapped = StoreError(f"the turn store refused a value: {error!r}")
    wrapped.__cause__ = error
    return wrapped


def _is_busy(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return "locked" in str(error) if code is None else code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def _deliver(tickets: list[Ticket], outcomes: list[Outcome]) -> None:
    """Wake the callers, each event loop once: a wake-up of a loop costs a system call."""
    answers = defaultdict(list)
    for (_, future), outcome in zip(tickets, outcomes, strict=True):
        answers[future.get_loop()].append((future, outcome))
    for loop, some in answers.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_answer, some)


def _answer(answers: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (result, error) in answers:
        if future.done():  # its caller was cancelled, which takes nothing back
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
