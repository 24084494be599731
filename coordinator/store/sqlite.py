"""A store in one SQLite file on a local disk. Switches on durability before the first read."""

import contextlib
import os
import sqlite3
from collections.abc import Collection
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from onceward.coordinator.store.database import Candidate, Database, StoreKind, cause_of
from onceward.coordinator.store.errors import PUT_BACK, StoreDamagedError, StoreError, StoreUnusableError
from onceward.coordinator.store.filesystem import refuse_network_filesystem
from onceward.coordinator.store.lock import StoreLock
from onceward.coordinator.store.private import make_private_directory, make_private_file

__all__ = ["SqliteCandidate", "SqliteDatabase", "connect", "file_of", "truncate_wal"]

_CACHED_STATEMENTS = 64
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 512


class SqliteDatabase(Database):
    """A file, its log and its lock file. Raises StoreUnusableError (in use, on a network filesystem) and
    StoreDamagedError."""

    kind = StoreKind.SQLITE
    own_place = "its own file"
    # the sqlite3 module raises UnicodeDecodeError when its message quotes damaged text
    errors = (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError)

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self._directory = file.parent
        try:
            make_private_directory(file.parent)
            refuse_network_filesystem(file.parent)
            for name in (file.name + ".lock", file.name, *_left_by_sqlite(file)):
                make_private_file(file.with_name(name))
            self._lock = StoreLock(file.with_name(file.name + ".lock"))
            try:
                with self.translated("opening the store"):
                    self._engine, self.connection = connect(file)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise StoreUnusableError(
                f"The store {file} cannot be opened: {error.strerror}: {error.filename}. Nothing was started. "
                "Give the process a directory and a file that it may read and write."
            ) from None

    def explain(self, error: Exception, doing: str) -> StoreError:
        text = cause_of(error)
        if isinstance(error, UnicodeDecodeError) or "not a database" in text or "malformed" in text:
            return StoreDamagedError(
                f"The store's file is damaged ({text}), seen while {doing}. Nothing was guessed. {PUT_BACK}"
            )
        if "locked" in text:
            return StoreUnusableError(
                f"The store's file is locked by another process, seen while {doing}. Stop that process."
            )
        return StoreError(
            f"The store failed while {doing}: {text}. Whether the last write happened is unknown, so nothing is built "
            "on it: the coordinator ends, and its next start reads what is on disk. Look at the disk's space and "
            "health."
        )

    def check_rights(self, tables: Collection[str]) -> None:
        """Who may open the file may do everything with it."""

    def secure_creation(self) -> None:
        """Write the id into the file itself. If the log is lost, the store keeps its id, and the claim shows that it
        is old."""
        truncate_wal(cast(sqlite3.Connection, self.connection.connection.dbapi_connection))
        _flush_directory(self._directory)

    def close(self) -> None:
        try:
            with contextlib.suppress(SQLAlchemyError):
                self.connection.close()
                self._engine.dispose()
        finally:
            self._lock.release()


class SqliteCandidate(Candidate):
    """Opens the file at once, or raises StoreUnusableError: a file has no standby."""

    waits = False

    def __init__(self, file: Path) -> None:
        self._file = file

    def wait(self, seconds: float) -> SqliteDatabase:
        return SqliteDatabase(self._file)

    def leader(self) -> None:
        return None

    def holder(self) -> str:
        return "unknown"

    def close(self) -> None:
        """Nothing is open."""


def _left_by_sqlite(file: Path) -> list[str]:
    """What an earlier process may have left beside the file, and SQLite reads. It makes them with the file's mode."""
    names = [file.name + suffix for suffix in ("-wal", "-shm", "-journal")]
    return [name for name in names if os.path.lexists(file.with_name(name))]


def file_of(url: str) -> Path:
    """The file behind a store URL such as ``sqlite:///./.onceward/store.db``. Raises StoreUnusableError."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreUnusableError(
            f"{url!r} is no store URL. Nothing was started. Write for example sqlite:////var/lib/onceward/store.db "
            "or postgresql://onceward@db.example.org/onceward"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise StoreUnusableError(
            f"A store of type {parsed.get_backend_name()} is not supported. Nothing was started. "
            "Use sqlite:///PATH on a local disk, or postgresql://USER@HOST/DATABASE."
        )
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:") or parsed.query:
        raise StoreUnusableError(
            f"{url!r} is not a plain file; decisions kept in memory are gone after a crash. Nothing was started. "
            "Use sqlite:///PATH on a local disk."
        )
    return Path(parsed.database)


def connect(file: Path) -> tuple[Engine, Connection]:
    """Open the file and write its log back into it. Raises StoreError; StoreDamagedError if the file is no database."""
    _refuse_other_files(file)
    # The one connection moves from the thread that opens the store to the thread that serves it.
    engine = create_engine(
        URL.create("sqlite", database=str(file)),
        poolclass=NullPool,
        paramstyle="named",
        connect_args={"check_same_thread": False, "timeout": 0, "cached_statements": _CACHED_STATEMENTS},
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine, engine.connect()


def truncate_wal(connection: sqlite3.Connection) -> None:
    """Write the write-ahead log back into the file. Raises StoreError when another process prevents that."""
    busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        raise StoreError("The store's log could not be forced into its file: another process reads it. Stop it.")


def _refuse_other_files(file: Path) -> None:
    """Reject a file that is not a whole SQLite database. SQLite would take a truncated file for an empty one and start
    over."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEADER_BYTES)
    except FileNotFoundError:
        return
    if head and (len(head) < _HEADER_BYTES or not head.startswith(_MAGIC)):
        raise StoreDamagedError(f"{file} is not a whole SQLite database. Nothing was changed or guessed. {PUT_BACK}")


def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin explicitly
    # Damaged text must reach the checksum test of its row. Otherwise the read of all rows would fail.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        with closing(connection.cursor()) as cursor:
            _make_durable(connection, cursor)
    except BaseException:
        connection.close()  # leave the file unlocked for the next process
        raise


def _make_durable(connection: sqlite3.Connection, cursor: sqlite3.Cursor) -> None:
    # Exclusive locking is a second guard beside the lock file, and avoids a shared memory file.
    cursor.execute("PRAGMA locking_mode=EXCLUSIVE")
    mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"SQLite refuses a write-ahead log here (its mode is {mode}). Nothing was changed.")
    cursor.execute("PRAGMA synchronous=FULL")
    # An interrupted run may have left a log whose last write was never confirmed. From here on only the file counts.
    truncate_wal(connection)
    report = [row[0] for row in cursor.execute("PRAGMA quick_check(5)")]
    if report != ["ok"]:
        raise StoreDamagedError(
            f"The store's file is damaged: {'; '.join(report)}. Nothing was changed or guessed. {PUT_BACK}"
        )


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _flush_directory(directory: Path) -> None:
    """Flush the directory, so that a new file's name survives a power cut like its content."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
