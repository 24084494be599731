"""The rows of a Delta table as ``onceward verify`` reads them."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from onceward.common.errors import ConfigurationError
from onceward.sinks.delta.control.reading import open_table
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.control.tables import NoTableError
from tests.unit.sinks.delta.tables import Table

ORDERS = pa.schema(
    [
        ("Id", pa.int64()),
        ('a "b"', pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("f", pa.float32()),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*numbers: int) -> pa.Table:
    row = {'a "b"': Decimal("1.50"), "at": AT, "f": 0.5, "tags": [("x", 1)]}
    return pa.Table.from_pylist([{**row, "Id": number} for number in numbers], ORDERS)


def test_rows_have_pythons_values_and_columns_their_types(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", ORDERS)
    write_deltalake(table.path, rows(1), mode="append")
    opened = open_table(table.location, "")
    assert opened.name == str(table.path)
    assert opened.columns == {"Id": "long", 'a "b"': "decimal", "at": "timestamp", "f": "float", "tags": "nested"}
    (row,) = opened.rows([*opened.columns])
    assert [*row] == [1, Decimal("1.50"), AT, 0.5, {"x": 1}]


def test_the_table_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", ORDERS)
    write_deltalake(table.path, rows(1), mode="append")
    opened = open_table(table.location, "")
    write_deltalake(table.path, rows(2), mode="append")
    for _ in range(2):
        assert [tuple(row) for row in opened.rows(["Id"])] == [(1,)]


def test_rows_that_a_deletion_vector_deletes_are_not_read(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", ORDERS, configuration={"delta.enableDeletionVectors": "true"})
    write_deltalake(table.path, rows(1, 2, 3), mode="append")
    table.now().delete('"Id" = 2')
    assert sorted(tuple(row) for row in open_table(table.location, "").rows(["Id"])) == [(1,), (3,)]


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    with pytest.raises(ConfigurationError, match="one itself"):
        open_table(table.location, "orders")
    with pytest.raises(NoTableError):
        open_table(TableLocation.of(tmp_path / "nothing"), "")
