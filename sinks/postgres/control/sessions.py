"""The sessions of one process: each caller has one of its own while it works, and leaves it for the next."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from onceward.sinks.postgres.connecting import SCHEMA, Session, cause_of, connect
from onceward.sinks.postgres.errors import DatabaseError
from onceward.sinks.postgres.server import Server, server_of

__all__ = ["NOT_SET_UP", "Sessions"]

NOT_SET_UP = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
"""What PostgreSQL answers where no sink has ever been."""


class Sessions:
    """Thread-safe. Sessions are opened when they are needed."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._idle: list[tuple[Session, Server]] = []
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[tuple[Session, Server]]:
        """A session, and the server that it is with. Raises DatabaseError for whatever PostgreSQL does not do."""
        try:
            with self.raw() as found:
                yield found
        except psycopg.Error as error:
            raise DatabaseError(
                f"PostgreSQL did not carry out a statement on the tables of schema {SCHEMA}: {cause_of(error)}. "
                "Nothing was changed by it, unless the connection was lost; it is safe to try again."
            ) from error

    @contextmanager
    def raw(self) -> Iterator[tuple[Session, Server]]:
        """The same. Raises psycopg.Error, and DatabaseError if there is no connection."""
        found = self._taken()
        try:
            yield found
        except BaseException:
            if found[0].broken:
                self._close_idle()  # the server has ended them, too: the next caller connects again
            found[0].close()
            raise
        with self._lock:
            if not self._closed and not found[0].closed:
                self._idle.append(found)
                return
        found[0].close()

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            session.close()

    def _taken(self) -> tuple[Session, Server]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        session = connect(self._dsn)
        try:
            return session, server_of(session)
        except psycopg.Error as error:
            session.close()
            raise DatabaseError(f"The database does not answer: {cause_of(error)}. Nothing was changed.") from error
