"""The statements of a write, passed to the database's driver directly: SQLAlchemy takes longer to prepare an execution
than the database to run it. It compiles each statement once."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.sql.expression import ClauseElement

__all__ = ["Row", "Statement"]

Row: TypeAlias = Mapping[str, Any]


class Statement:
    """Runs on the caller's connection, in its transaction, with parameters by name. Without ``in_`` of values,
    which SQLAlchemy writes into each execution."""

    def __init__(self, clause: ClauseElement) -> None:
        self._clause = clause
        self._texts: dict[tuple[str, ...], tuple[str, Row]] = {}
        """With the values that are part of the statement."""

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Run it once for each row; all have the same columns in the same order."""
        if rows:
            text, own = self._text(connection, rows[0])
            connection.connection.cursor().executemany(text, [{**own, **row} for row in rows] if own else rows)

    def rows(self, connection: Connection, parameters: Row) -> list[dict[str, Any]]:
        """Return what it selects, by the names of the columns."""
        cursor, found = self._fetch(connection, parameters)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found]

    def tuples(self, connection: Connection, parameters: Row) -> list[tuple[Any, ...]]:
        """Return what it selects, in the order of the columns."""
        return self._fetch(connection, parameters)[1]

    def first(self, connection: Connection, parameters: Row) -> dict[str, Any] | None:
        """Return the first row that it selects, if there is one."""
        return next(iter(self.rows(connection, parameters)), None)

    def _fetch(self, connection: Connection, parameters: Row) -> tuple[Any, list[tuple[Any, ...]]]:
        cursor = connection.connection.cursor()
        text, own = self._text(connection, parameters)
        cursor.execute(text, {**own, **parameters})
        return cursor, list(cursor.fetchall())

    def _text(self, connection: Connection, parameters: Row) -> tuple[str, Row]:
        key = (connection.dialect.name, *parameters)
        found = self._texts.get(key)
        if found is None:
            compiled = self._clause.compile(dialect=connection.dialect, column_keys=list(parameters))
            values = compiled.construct_params(dict(parameters)) or {}
            own = {name: value for name, value in values.items() if name not in parameters}
            found = self._texts[key] = str(compiled), own
        return found
