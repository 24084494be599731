"""Where a test's store is: a SQLite file, or a schema of a real PostgreSQL."""

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from onceward.coordinator.store.store import Store
from onceward.protocol.durable import Durable

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

__all__ = ["Place", "postgres_place", "sqlite_place"]


_ONLY_IN_A_FILE = re.compile(r"BLOB|x'|1e300")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place for one store."""

    url: str
    """For the store."""
    fresh: "Callable[[], Place]"
    """Another place of this kind, which nothing has used."""

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql:")

    def open(self) -> Store:
        return Store.open(self.url)

    def reopened(self, store: Store) -> Store:
        store.close()
        return self.open()

    def loaded(self) -> list[Durable]:
        with closing(self.open()) as store:
            return store.load_jobs()

    @contextmanager
    def raw(self) -> Iterator[Connection]:
        """Read or write the database as another program would, in one transaction."""
        engine = create_engine(
            self.url.replace("postgresql:", "postgresql+psycopg:"),
            poolclass=NullPool,
            execution_options={"no_parameters": True},  # a percent sign is a percent sign
        )
        with engine.begin() as connection:
            yield connection

    def run(self, *statements: str) -> None:
        with self.raw() as raw:
            for statement in statements:
                raw.exec_driver_sql(statement)

    def change(self, statement: str) -> None:
        """Change one row of a closed store, like damage or manual editing would.

        PostgreSQL cannot hold everything that damage leaves in a SQLite file, such as bytes in a column of numbers.
        """
        if self.is_postgres and _ONLY_IN_A_FILE.search(statement):
            pytest.skip("PostgreSQL refuses such values")
        with self.raw() as raw:
            assert raw.exec_driver_sql(statement).rowcount == 1


def sqlite_place(directory: Path) -> Place:
    """A file in a new directory below ``directory``."""
    file = directory / secrets.token_hex(8) / "store.db"
    file.parent.mkdir()
    return Place(url=f"sqlite:///{file}", fresh=lambda: sqlite_place(directory))


def postgres_place(server: "LocalPostgres") -> Place:
    """A new schema of the server's database."""
    schema = f"s{secrets.token_hex(8)}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    url = f"{server.url}?options=-csearch_path%3D{schema}"
    return Place(url=url, fresh=lambda: postgres_place(server))
