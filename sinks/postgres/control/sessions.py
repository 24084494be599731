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
        self._newest: Server | None = None
        """Who has answered on the newest timeline."""
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
            found = self._idle.pop() if self._idle else None
        session, server = found or self._opened()
        with self._lock:
            newest = self._newest = server if self._newest is None else _newer(self._newest, server)
        if newest.timeline > server.timeline > 0:
            session.close()
            raise DatabaseError(
                f"The server that answers is on timeline {server.timeline}, and another one has answered on timeline "
                f"{newest.timeline}: it is the former primary, which would take commits that the new one never gets. "
                "Nothing was changed there. Shut it down."
            )
        return session, server

    def _opened(self) -> tuple[Session, Server]:
        session = connect(self._dsn)
        try:
            return session, server_of(session)
        except psycopg.Error as error:
            session.close()
            raise DatabaseError(f"The database does not answer: {cause_of(error)}. Nothing was changed.") from error


def _newer(one: Server, other: Server) -> Server:
    """The one on the newer timeline, or ``other`` if it is another database."""
    return one if one.id == other.id and one.timeline > other.timeline else other
