"""The rows of a table of PostgreSQL, for ``onceward verify``."""

from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from onceward.common.errors import ConfigurationError
from onceward.connectors.at_rest import TableAtRest
from onceward.sinks.postgres.connecting import Session, cause_of, connect
from onceward.sinks.postgres.errors import DatabaseError

__all__ = ["open_table"]

_FETCHED = 5_000
_WORDS = {
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "date": "date",
    "float4": "float",
    "float8": "double",
    "numeric": "decimal",
    "bytea": "binary",
}
_NAME: LiteralString = """
    SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(%s)
"""
_COLUMNS: LiteralString = """
    SELECT a.attname::text, coalesce(b.typname, t.typname)::text FROM pg_attribute a
        JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = t.typbasetype
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


class PostgresAtRest(TableAtRest):
    """A table, or a view, in one snapshot of its database."""

    def __init__(self, session: Session, table: str) -> None:
        """Take the snapshot. Raises psycopg.Error, and ConfigurationError if there is no such table."""
        self._session = session
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        found = session.execute(_NAME, (table,)).fetchone()
        if found is None:
            raise ConfigurationError(
                f"There is no table {table} in the database, or the role may not use its schema. Nothing was read. "
                "Write its name as in SQL, with its schema."
            )
        self._place = sql.Identifier(*found)
        self.name = ".".join(found)
        self.columns = {name: _WORDS.get(kind, kind) for name, kind in session.execute(_COLUMNS, (table,))}

    def rows(self, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """See :meth:`TableAtRest.rows`. Raises DatabaseError."""
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        try:
            with self._session.cursor("rows") as cursor:
                cursor.itersize = _FETCHED
                yield from cursor.execute(sql.SQL("SELECT {} FROM {}").format(listed, self._place))
        except psycopg.Error as error:
            raise _unread(error) from error

    def close(self) -> None:
        """End the snapshot."""
        self._session.close()


def open_table(dsn: str, name: str) -> PostgresAtRest:
    """Connect. ``name``: as in SQL. Raises ConfigurationError for one that names nothing, DatabaseError."""
    if not name:
        raise ConfigurationError("A system of kind postgres has many tables. Nothing was read. Give SYSTEM:TABLE.")
    session = connect(dsn)
    try:
        return PostgresAtRest(session, name)
    except psycopg.Error as error:
        session.close()
        raise _unread(error) from error
    except BaseException:
        session.close()
        raise


def _unread(error: psycopg.Error) -> DatabaseError:
    return DatabaseError(
        f"The table cannot be read: {cause_of(error)}. Nothing was changed. Give the role SELECT on it, and see that "
        "the server answers."
    )
