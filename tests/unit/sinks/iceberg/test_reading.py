"""The rows of an Iceberg table as ``onceward verify`` reads them."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from onceward.common.errors import ConfigurationError
from onceward.sinks.iceberg.control.reading import open_table
from tests.unit.sinks.delta.test_reading import AT, ORDERS, rows
from tests.unit.sinks.iceberg.tables import Table, sqlite_catalog


def test_rows_have_pythons_values_and_columns_their_types(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path), ORDERS)
    assert [*open_table(table.location, "").rows(["Id"])] == []
    table.now().append(rows(1))
    opened = open_table(table.location, "")
    assert opened.name == "shop.orders"
    assert opened.columns == {"Id": "long", 'a "b"': "decimal", "at": "timestamp", "f": "float", "tags": "nested"}
    (row,) = opened.rows([*opened.columns][::-1])
    assert [*row] == [{"x": 1}, 0.5, AT, Decimal("1.50"), 1]


def test_the_table_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path), pa.schema([("Id", pa.int64()), ("at", pa.timestamp("us"))]))
    table.now().append(pa.table({"Id": [1, 2], "at": pa.array([datetime.now(UTC)] * 2, pa.timestamp("us"))}))
    opened = open_table(table.location, "")
    table.now().delete("Id = 1")
    for _ in range(2):
        assert sorted(tuple(row) for row in opened.rows(["Id"])) == [(1,), (2,)]
    assert opened.columns["at"] == "timestamp_ntz"
    with pytest.raises(ConfigurationError, match="one itself"):
        open_table(table.location, "orders")
