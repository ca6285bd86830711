"""Schema and migrations of the store: the database file is created, checked and locked here.

Small rows that change (`turns`: state, lease) stand apart from large ones that never do (`records`: ids,
log-probs), so that a move of state rewrites bytes, not kilobytes. Text is stored once: `contents` holds each
message, tool list and reply under its hash, and a record names them by number.

    contents ◀─ records ── turns ── next_states, verdicts, judgements, feedback, transitions, matching_keys

A file that an earlier version wrote gets what is new when it is opened; nothing in it is rewritten.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import BinaryIO

from slime.errors import ConfigError

APPLICATION_ID = 0x0C1A3710
"""Marks the file as ours in SQLite's header."""

FILE_NAME = "turns.sqlite3"

SCHEMA_VERSION = 4

CREATE = """
CREATE TABLE contents (
    content_id INTEGER PRIMARY KEY,
    hash BLOB NOT NULL UNIQUE,             -- blake2b of body, 16 bytes
    body BLOB NOT NULL                     -- JSON
);
CREATE TABLE turns (
    seq INTEGER PRIMARY KEY,               -- order of commit
    turn_id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    parent_id TEXT,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',       -- why it is excluded
    step INTEGER,                          -- the update that consumed it
    lease_owner TEXT,
    lease_from REAL,                       -- monotonic clock, see leases.py
    lease_until REAL
);
CREATE INDEX turns_by_state ON turns (state, seq);
CREATE INDEX turns_by_session ON turns (session_id, seq);
CREATE INDEX turns_by_step ON turns (step) WHERE step IS NOT NULL;
CREATE INDEX turns_by_owner ON turns (lease_owner) WHERE lease_owner IS NOT NULL;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY REFERENCES turns,
    stored_at REAL NOT NULL,               -- wall clock, a label only
    created_at REAL NOT NULL,
    base_seq INTEGER,                      -- the earlier turn that this one shares messages and ids with
    messages BLOB NOT NULL,                -- splice of content ids against the base's
    prompt_shared INTEGER NOT NULL,        -- ids shared with the head of the base's prompt + completion
    prompt_tail BLOB NOT NULL,             -- the other prompt ids, little-endian int32
    token_ids BLOB NOT NULL,               -- little-endian int32
    logprobs BLOB NOT NULL,                -- little-endian float64
    reply_id INTEGER NOT NULL,
    tools_id INTEGER NOT NULL,
    body BLOB NOT NULL,                    -- JSON: text, finish reason, spans, sampling, retry_of, source, …, details
    crc INTEGER NOT NULL                   -- of the turn as it was given, not of its encoding
);
CREATE TABLE next_states (
    next_state_id INTEGER PRIMARY KEY,     -- the first of a turn is the one it is judged by
    seq INTEGER NOT NULL REFERENCES turns,
    from_turn TEXT,                        -- the turn whose request brought it
    content_ids BLOB NOT NULL,             -- little-endian int32
    crc INTEGER NOT NULL
);
CREATE INDEX next_states_by_turn ON next_states (seq);
CREATE TABLE verdicts (
    seq INTEGER PRIMARY KEY REFERENCES turns,
    judged_at REAL NOT NULL,
    body BLOB NOT NULL,                    -- JSON
    crc INTEGER NOT NULL
);
CREATE TABLE transitions (
    transition_id INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL REFERENCES turns,
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    at REAL NOT NULL,
    note TEXT NOT NULL                     -- owner, reason or step
);
CREATE INDEX transitions_by_turn ON transitions (seq);
"""

JUDGEMENTS_AND_FEEDBACK = """
CREATE TABLE judgements (
    judgement_id INTEGER PRIMARY KEY,      -- order of storing
    seq INTEGER NOT NULL REFERENCES turns,
    prompt_id INTEGER NOT NULL,            -- content: the list of messages that were shown
    body BLOB NOT NULL,                    -- JSON: judge, model, answer, score, failure, latency, time, details
    crc INTEGER NOT NULL
);
CREATE INDEX judgements_by_turn ON judgements (seq);
CREATE TABLE feedback (
    feedback_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- the newest of a turn counts
    seq INTEGER NOT NULL REFERENCES turns,
    created_at REAL NOT NULL,
    body BLOB NOT NULL,                    -- JSON: kind, value, text
    crc INTEGER NOT NULL
);
CREATE INDEX feedback_by_turn ON feedback (seq);
ALTER TABLE verdicts
    ADD COLUMN feedback_id INTEGER NOT NULL DEFAULT 0 /* the newest feedback it knows of */
"""

MATCHING_KEYS = """
CREATE TABLE matching_keys (
    key BLOB NOT NULL,                     -- digest of a credential and of what a later request repeats of the turn
    seq INTEGER NOT NULL REFERENCES turns,
    PRIMARY KEY (key, seq)
) WITHOUT ROWID;
CREATE TABLE keys_owed (
    below INTEGER NOT NULL                 -- turns in rows below this one have no keys yet
);
INSERT INTO keys_owed SELECT COALESCE(MAX(seq), 0) + 1 FROM turns
"""

TYPED_BODIES = "SELECT 1"
"""No table changes: rows written from here on name what decides something apart from their details, and a program that
looks for it there must not open the file (see `earlier`)."""

MIGRATIONS = {1: JUDGEMENTS_AND_FEEDBACK, 2: MATCHING_KEYS, 3: TYPED_BODIES}
"""What turns a file of that version into one of the next."""


def prepare(path: Path) -> None:
    """Create the tables in a new file, or check that an existing one is ours, and bring it to our version.

    Raises:
        ConfigError: the file is not a turn store, or a newer program wrote it.
    """
    if path.is_symlink():
        raise ConfigError(f"{path} is a symbolic link; give the directory that holds the database")
    path.touch(mode=0o600)
    if path.stat().st_mode & 0o077 and path.stat().st_uid == os.geteuid():
        path.chmod(0o600)  # of an earlier version, or copied; its journals get the same mode
    try:
        connection = sqlite3.connect(path, timeout=10.0, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _create_or_check(connection, path)
        finally:
            connection.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # damaged names come as undecodable messages
        raise ConfigError(f"{path} cannot be opened as a turn store: {error}") from error


def _run(connection: sqlite3.Connection, script: str) -> None:
    """The statements one by one, inside the transaction that is open (`executescript` would commit it)."""
    for statement in script.split(";\n"):
        connection.execute(statement)


def _create_or_check(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
    if tables == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _run(connection, CREATE)
        application_id, version = APPLICATION_ID, 1
    if application_id != APPLICATION_ID:
        raise ConfigError(f"{path} is not a turn store (foreign application id); choose another --rl-buffer-dir")
    if not 1 <= version <= SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has store schema {version}, this program reads {SCHEMA_VERSION}; "
            "use the program that wrote it, or choose another --rl-buffer-dir"
        )
    if version < SCHEMA_VERSION:
        for number in range(version, SCHEMA_VERSION):
            _run(connection, MIGRATIONS[number])
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def locate(location: str | Path) -> Path:
    """The database file that a location means."""
    text = str(location)
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "sqlite":
        raise ConfigError(f"the turn store cannot be at {text}; give a directory or sqlite:///path")
    path = Path(rest if separator else text)
    return path if path.suffix == ".sqlite3" else path / FILE_NAME


def is_store(location: str | Path) -> bool:
    """Whether there is a store: a buffer directory, or its file."""
    return locate(location).is_file()


def lock_appends(database: Path) -> BinaryIO:
    """One appending server per store: an advisory lock on a file beside it, which the kernel drops with its holder.

    Held until the file that is returned is closed, or the process ends, however that comes.

    Raises:
        ConfigError: another process holds it, or the directory cannot be written.
    """
    path = database.with_name(database.name + ".lock")
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", buffering=0)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}; choose another --rl-buffer-dir") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        with file:
            holder = file.read(20).decode("ascii", "replace").strip() or "unknown"
        raise ConfigError(
            f"another server (process {holder}) stores its turns in {database.parent}; "
            "stop it, or choose another --rl-buffer-dir"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()).encode("ascii"))
    return file
