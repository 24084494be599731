"""A database of a test's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from onceward.dev.postgres.server import DATABASE, LocalPostgres

__all__ = ["Database", "database_on"]


class Database:
    """Runs statements beside the sink."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as session:
            for statement in statements:
                session.execute(statement.encode())

    def rows(self, query: str) -> Sequence[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as session:
            return session.execute(query.encode()).fetchall()

    def names(self) -> list[str]:
        """The staging tables that are there."""
        return [
            name
            for (name,) in self.rows(
                "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('onceward_sink') AND relkind = 'r'"
                " AND relname NOT IN ('claims', 'receipts', 'staged') ORDER BY 1"
            )
        ]


@contextmanager
def database_on(server: LocalPostgres, name: str) -> Iterator[Database]:
    """Make a database and remove it at the end."""
    main = Database(server.url)
    main.run(f'CREATE DATABASE "{name}"')
    try:
        yield Database(server.url.removesuffix(DATABASE) + name)
    finally:
        main.run(f'DROP DATABASE "{name}" WITH (FORCE)')
