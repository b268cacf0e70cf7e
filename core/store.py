"""The server's persistent state in one SQLite file: apps, estimates, voices, audit, recordings.

All methods block. With the write-ahead log, reading does not wait for writers; writing waits for
the disk and other writers, so an event loop writes in a thread.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from core.files import FILE_MODE, SAFE_FLAGS, locked

STATE_FILE: Final = "state.db"
LOG_SUFFIXES: Final = ("", "-wal", "-shm")  # source: SQLite, "Temporary Files Used By SQLite"
WAIT_S: Final = 5.0  # for other processes that write
SCHEMA_VERSION: Final = 1
SCHEMA: Final = f"""
BEGIN;
CREATE TABLE apps (app_id TEXT PRIMARY KEY, is_enabled INTEGER NOT NULL) STRICT;
CREATE TABLE estimates (name TEXT PRIMARY KEY, value REAL) STRICT;
CREATE TABLE voices (id TEXT PRIMARY KEY, voice TEXT NOT NULL) STRICT;
CREATE TABLE audit (number INTEGER PRIMARY KEY, entry TEXT NOT NULL) STRICT;
CREATE TABLE recordings
    (id TEXT PRIMARY KEY, changed_ns INTEGER NOT NULL, listed TEXT NOT NULL) STRICT;
CREATE TABLE accesses (recording_id TEXT PRIMARY KEY, at_s REAL NOT NULL) STRICT;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
# Added to files of the version, which earlier servers read as well.
ADDED: Final = "CREATE TABLE IF NOT EXISTS switches (name TEXT PRIMARY KEY) STRICT;"


class Store:
    """One SQLite file, shared by threads and processes.

    Its folder is created at the first write. A file that is damaged at its first use is renamed,
    and a new one is created.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / STATE_FILE
        self._idle: deque[sqlite3.Connection] = deque()  # at most one for each concurrent thread
        self._is_ready = False
        self._log = structlog.get_logger("state")

    # Any: the caller knows the types of the columns.
    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """Return rows; an unreadable file is logged and counts as empty."""
        if not self._path.exists():
            return []
        try:
            with self._connection() as connection:
                return connection.execute(sql, values).fetchall()
        except OSError as error:
            self._log.error("state unreadable", path=str(self._path), reason=str(error))
            return []

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit the block's writes atomically; after an `OSError` nothing was written."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with ExitStack() as failed:
                connection = failed.enter_context(closing(self._take()))  # which rolls back
                yield connection
                failed.pop_all()
                self._idle.append(connection)
        except sqlite3.DatabaseError as error:
            if type(error) in (sqlite3.DatabaseError, sqlite3.OperationalError):
                is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
                number = errno.ENOSPC if is_full else errno.EIO
                raise OSError(number, str(error), str(self._path)) from error
            raise

    def _take(self) -> sqlite3.Connection:
        with suppress(IndexError):
            return self._idle.pop()
        if not self._is_ready:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self._path.parent):
                self._prepare()
            self._is_ready = True
        return _connect(self._path)

    def _prepare(self) -> None:
        """Create or replace the file if necessary; the caller holds the folder's lock."""
        if not _is_whole(self._path):
            aside = f"{self._path}.damaged-{datetime.now(UTC):%Y%m%d-%H%M%S}"
            for suffix in LOG_SUFFIXES:
                if os.path.lexists(f"{self._path}{suffix}"):
                    os.replace(f"{self._path}{suffix}", aside + suffix)
            self._log.error("state damaged: moved aside, a new one begins", moved_to=aside)
        with closing(_connect(self._path)) as connection:
            ((version,),) = connection.execute("PRAGMA user_version").fetchall()
            if version == 0:
                connection.executescript(SCHEMA)
            elif version > SCHEMA_VERSION:
                raise OSError(errno.EINVAL, f"{self._path} is of a newer version of this server")
            connection.execute(ADDED)


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite gives its log files the mode of the database.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | SAFE_FLAGS, FILE_MODE))
    connection = sqlite3.connect(path, WAIT_S, isolation_level=None, check_same_thread=False)
    with ExitStack() as undo:
        undo.callback(connection.close)
        connection.execute("PRAGMA journal_mode = WAL")
        undo.pop_all()
    return connection


def _is_whole(path: Path) -> bool:
    try:
        with closing(_connect(path)) as connection:
            return connection.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]
    except sqlite3.OperationalError:  # the disk refuses
        raise
    except sqlite3.DatabaseError:
        return False
