"""One connection to one SQLite file. Switches on durability before the first read."""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from onceward.coordinator.store.errors import PUT_BACK, StoreDamagedError, StoreError, StoreUnusableError

__all__ = ["connect", "file_of", "truncate_wal"]

_CACHED_STATEMENTS = 64
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 512


def file_of(url: str) -> Path:
    """The file behind a store URL such as ``sqlite:///./.onceward/store.db``. Raises StoreUnusableError."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreUnusableError(
            f"{url!r} is no store URL. Nothing was started. Write for example sqlite:////var/lib/onceward/store.db"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise StoreUnusableError(
            f"A store of type {parsed.get_backend_name()} is not supported. Nothing was started. "
            "Use sqlite:///PATH on a local disk."
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
