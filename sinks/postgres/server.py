"""What a server says of itself."""

from dataclasses import dataclass
from typing import LiteralString

import psycopg

from onceward.sinks.postgres.connecting import Session

__all__ = ["Server", "server_of"]

_FACTS: LiteralString = """
    SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || d.oid, d.datname,
        pg_is_in_recovery(), current_setting('server_version_num')::int / 10000
    FROM pg_database d WHERE datname = current_database()
"""
_TIMELINE: LiteralString = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"


@dataclass(frozen=True, kw_only=True)
class Server:
    """The database behind a session."""

    id: str
    """The number that its cluster got when it was made, and that of the database: a copy has the same, a dump that was
    restored has another."""
    database: str
    timeline: int
    """A promotion, and a recovery from a backup, begin the next one; 0 if the server does not say it."""


def server_of(session: Session) -> Server:
    """Raises psycopg.Error."""
    row = session.execute(_FACTS).fetchone()
    assert row is not None, "the database that answers is listed"
    identity, database, recovering, _ = row
    return Server(id=identity, database=database, timeline=0 if recovering else _timeline(session))


def _timeline(session: Session) -> int:
    try:
        row = session.execute(_TIMELINE).fetchone()
    except psycopg.DatabaseError:
        if session.closed:
            raise
        return 0  # some services keep no log
    assert row is not None, "a function has one answer"
    return int(row[0], 16)
