"""SQLite as the run store uses it: WAL, full synchronisation, one writer held by a lock that dies with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import IO

from vibeserve.base.errors import InputError

SCHEMA_VERSION = 2

#: Called before and after each commit with a word for where it is; a test raises here to make that point the last one.
WriteHook = Callable[[str], None]


def _no_hook(point: str) -> None:
    del point


class Database:
    """A connection to one run.db.

    Raises InputError for a file that is no run store, or one of a newer version, or (for writing) one that another
    process is writing.
    """

    def __init__(self, path: Path, *, write: bool, hook: WriteHook = _no_hook):
        self.path = path
        self._hook = hook
        self._lock: IO[str] | None = None
        if write:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(path.with_suffix(".lock"))
        elif not path.is_file():
            raise InputError(f"no run store at {path}", hint="'vibeserve runs' lists the runs")
        self.connection = sqlite3.connect(
            path if write else f"{path.absolute().as_uri()}?mode=ro",
            uri=not write,
            isolation_level=None,
            check_same_thread=False,  # agents that work at once record their calls, one at a time
        )
        self.version = SCHEMA_VERSION
        try:
            self._prepare(write=write)
        except sqlite3.DatabaseError as error:
            self.close()
            raise InputError(f"{path} is no run store: {error}", hint="it is left as it is") from error
        except BaseException:
            self.close()
            raise

    def _prepare(self, *, write: bool) -> None:
        self.connection.row_factory = sqlite3.Row
        self.connection.execute("PRAGMA busy_timeout = 5000")
        version = self._version()
        if write:
            self.connection.execute("PRAGMA journal_mode = WAL")
            self.connection.execute("PRAGMA synchronous = FULL")
        if version is None and write:
            self._create()
            version = SCHEMA_VERSION
        if version is not None and version < SCHEMA_VERSION:
            if write:
                version = self._upgrade(version)
            self.version = version  # a reader leaves an old store as it is
        elif version != SCHEMA_VERSION:
            raise InputError(
                f"{self.path} has store version {version}; this version of vibeserve reads {SCHEMA_VERSION}",
                hint="use the version of vibeserve that wrote it",
            )

    def _version(self) -> int | None:
        names = {row[0] for row in self.connection.execute("SELECT name FROM sqlite_master")}
        if "meta" not in names:
            if names:
                raise sqlite3.DatabaseError("it holds other tables")
            return None
        row = self.connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        return int(row[0]) if row else None

    def _upgrade(self, version: int) -> int:
        for number in range(version + 1, SCHEMA_VERSION + 1):
            with self.transaction(f"upgrade to {number}"):
                self._run_script(f"upgrade-{number}.sql")
                self.connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(number),))
        return SCHEMA_VERSION

    def _run_script(self, name: str) -> None:
        for statement in _statements(files("vibeserve.search.store").joinpath(name).read_text(encoding="utf-8")):
            self.connection.execute(statement)

    def _create(self) -> None:
        with self.transaction("create"):
            self._run_script("schema.sql")
            self.connection.execute("INSERT INTO meta VALUES ('schema_version', ?)", (str(SCHEMA_VERSION),))

    @contextlib.contextmanager
    def transaction(self, name: str) -> Iterator[sqlite3.Connection]:
        """All that is executed inside is on disk when this ends, or none of it is."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self._hook(f"before {name}")
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        self._hook(f"after {name}")

    def close(self) -> None:
        """Close the connection and give up the write lock."""
        self.connection.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _take_lock(path: Path) -> IO[str]:
    handle = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.seek(0)
        owner = handle.read().strip() or "another process"
        handle.close()
        raise InputError(
            f"{path.parent} is being written by process {owner}", hint="wait for it, or end it; then try again"
        ) from error
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle
