"""The rows of a table of PostgreSQL as ``onceward verify`` reads them."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from onceward.common.errors import ConfigurationError
from onceward.sinks.postgres.control.reading import PostgresAtRest, open_table
from onceward.sinks.postgres.errors import DatabaseError
from tests.support.database import Database


@pytest.fixture
def table(database: Database) -> Iterator[PostgresAtRest]:
    database.run(
        "CREATE DOMAIN price AS numeric(12,2)",
        'CREATE TABLE "Orders" (id int, "a b" price, at timestamptz, day date, r real, d double precision, n jsonb,'
        " raw bytea, t text[], dropped int)",
        'ALTER TABLE "Orders" DROP COLUMN dropped',
        """INSERT INTO "Orders" VALUES (1, 1.5, '2026-01-01 02:00+02', '2026-01-01', 0.1, 0.1, '{"x": 1}', '\\x0001',
            '{a,NULL}')""",
    )
    opened = open_table(database.dsn, '"Orders"')
    yield opened
    opened.close()


def test_rows_have_pythons_values_and_columns_their_types(table: PostgresAtRest) -> None:
    assert table.name == "public.Orders"
    assert table.columns == {
        "id": "int4",
        "a b": "decimal",
        "at": "timestamp",
        "day": "date",
        "r": "float",
        "d": "double",
        "n": "jsonb",
        "raw": "binary",
        "t": "_text",
    }
    (row,) = table.rows([*table.columns])
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert [*row] == [1, Decimal("1.50"), at, date(2026, 1, 1), 0.1, 0.1, {"x": 1}, b"\0\1", ["a", None]]


def test_the_table_is_read_as_it_was_when_it_was_opened(table: PostgresAtRest, database: Database) -> None:
    database.run('INSERT INTO "Orders" (id) VALUES (2)', 'UPDATE "Orders" SET id = 3 WHERE id = 1')
    for _ in range(2):
        assert [tuple(row) for row in table.rows(["id"])] == [(1,)]


def test_a_view_can_be_read(database: Database) -> None:
    database.run("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)", "CREATE VIEW v AS SELECT * FROM t LIMIT 1")
    opened = open_table(database.dsn, "v")
    assert len([*opened.rows(["id"])]) == 1
    opened.close()


def test_what_cannot_be_read_is_refused(database: Database) -> None:
    with pytest.raises(ConfigurationError, match=r"no table shop\.orders"):
        open_table(database.dsn, "shop.orders")
    with pytest.raises(ConfigurationError, match="SYSTEM:TABLE"):
        open_table(database.dsn, "")
    database.run("CREATE VIEW broken AS SELECT 1 / n AS id FROM generate_series(0, 1) n")
    opened = open_table(database.dsn, "broken")
    with pytest.raises(DatabaseError, match="cannot be read: division by zero"):
        list(opened.rows(["id"]))
    opened.close()
