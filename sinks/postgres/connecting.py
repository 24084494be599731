"""Sessions with the database, and the names of what the sink keeps there. Runs on executors too."""

import os
import socket
from typing import Any, Final, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict

from onceward.common.errors import ConfigurationError
from onceward.sinks.postgres.dsn import resolved
from onceward.sinks.postgres.errors import DatabaseError

__all__ = ["POSITION", "SCHEMA", "Session", "cause_of", "connect"]

Session = psycopg.Connection[Any]

SCHEMA: Final = "onceward_sink"
"""Holds claims, receipts and staging tables. Not ``onceward``, in which the coordinator may keep its store."""
POSITION: Final = "onceward_position"
"""Column of a staging table: the number of a row in its slot."""
_DEFAULTS = {
    "connect_timeout": "10",
    # A link that swallows everything ends the session in half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_OURS = {
    # The server notices as soon that a process is gone, and ends its transaction.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    # Waiting is ended now and then, so that a process that leaves is not held.
    "lock_timeout": "2000",
    "default_transaction_isolation": "read committed",
    "DateStyle": "ISO",
    "TimeZone": "UTC",
}
"""Settings of the session, whatever the role, the database or the server says."""
_SET: LiteralString = """
    SELECT set_config(name, ours.value, false) FROM pg_settings
        JOIN unnest(%s::text[], %s::text[]) AS ours (name, value) USING (name)
    UNION ALL
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""
"""What is answered as committed must survive a crash of the server, whatever the role's setting is."""


def connect(dsn: str) -> Session:
    """Open a session that commits each statement, unless in a transaction. Raises DatabaseError, and
    ConfigurationError for a reference that leads nowhere."""
    name = f"onceward {socket.gethostname()[:40]}:{os.getpid()}"
    given = str(resolved(dsn))
    try:
        wanted = conninfo_to_dict(given)
    except psycopg.ProgrammingError:
        # the client's message repeats the text
        raise ConfigurationError(
            f"The connection string{f' of {dsn}' if dsn != given else ''} cannot be read. Nothing was connected. Write "
            "for example postgresql://onceward@db.example.org/shop"
        ) from None
    settings: dict[str, Any] = {**_DEFAULTS, "fallback_application_name": name, **wanted, "client_encoding": "UTF8"}
    try:
        session = psycopg.connect(**settings, autocommit=True)
    except psycopg.Error as error:
        raise DatabaseError(
            f"The database of {dsn if dsn != given else 'the sink'} cannot be reached: {cause_of(error)}. The "
            "outcome of what was under way is unknown; it is asked for again."
        ) from None
    try:
        session.execute(_SET, (list(_OURS), list(_OURS.values())))
    except psycopg.Error as error:
        session.close()
        raise DatabaseError(f"The database does not answer: {cause_of(error)}. Nothing was changed.") from error
    return session


def cause_of(error: Exception) -> str:
    """What PostgreSQL or the client says, without its position in a statement."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return (primary or str(error).strip().partition("\n")[0] or type(error).__name__).rstrip(".")
