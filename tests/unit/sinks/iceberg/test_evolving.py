"""Columns that a table lacks are added before anything is written, and only if the sink may."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType, StringType

from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.sinks.iceberg.driver.columns import iceberg_type, spark_type
from onceward.sinks.iceberg.driver.session import IcebergSession
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.delta.test_writer import context
from tests.unit.sinks.iceberg.tables import Table, sqlite_catalog
from tests.unit.sinks.iceberg.test_committing import in_the_catalogue
from tests.unit.sinks.iceberg.test_writer import TYPES, Writing

GIVEN = [("value", "binary"), ("more", "struct<a:int,b:array<string>,c:map<string,bigint>>")]


def session_of(table: Table, schema: Any = "evolve") -> IcebergSession:
    session: IcebergSession = table.sink(schema=schema).connect(CONTEXT)
    return session


def test_a_new_column_is_refused_if_the_schema_is_checked(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    with pytest.raises(ConfigurationError, match="more: the table has no such column"):
        session_of(table, "check").choose(GIVEN)
    with pytest.raises(ConfigurationError, match="neither 'check' nor 'evolve'"):
        session_of(table, "loose")


def test_a_new_column_is_added_with_its_values_and_is_null_before(tmp_path: Path) -> None:
    writing = Writing(tmp_path, pa.schema([("value", pa.binary())]), sink={"schema": "evolve"})
    table, session = writing.table, writing.session
    table.append(b"before")
    assert [one.name for one in session.choose(GIVEN)] == ["value", "more"]
    assert len(table.now().schemas()) == 1, "choosing asks no one"
    slot = session.write().open(context())
    new = {"a": 1, "b": ["x"], "c": [("k", 2)]}
    more = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string())), ("c", pa.map_(pa.string(), pa.int64()))])
    schema = pa.schema([("value", pa.binary()), ("more", more)])
    slot.write(pa.RecordBatch.from_pylist([{"value": b"a", "more": new}], schema))
    found = writing.added(slot.finish()).to_pylist()
    assert {"value": b"before", "more": None} in found
    assert {"value": b"a", "more": new} in found
    session.choose(GIVEN)
    session.write()
    assert len(table.now().schemas()) == 2, "nothing is added twice"


@pytest.mark.parametrize("kind", [StringType(), IntegerType()])
def test_another_program_that_adds_the_column_or_commits_meanwhile_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    table = Table(sqlite_catalog(tmp_path))
    session = session_of(table)
    session.choose([("value", "binary"), ("more", "string")])

    def others() -> None:
        table.append(b"x")
        with table.now().update_schema() as columns:
            columns.add_column("more", kind)

    in_the_catalogue(monkeypatch, others)
    if kind == StringType():
        assert session.write().schema.names == ["value", "more"]
    else:
        with pytest.raises(CheckpointFailedError, match="another program has added it as int"):
            session.write()


def test_types_of_new_columns_are_those_of_spark(tmp_path: Path) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in TYPES.items() if name != "fixed"])
    for field in Table(sqlite_catalog(tmp_path), schema).now().schema().fields:
        assert spark_type(iceberg_type(spark_type(field.field_type))) == spark_type(field.field_type)


@pytest.mark.parametrize("kind", ["void", "interval day", "array<void>", "struct<>", "map<string>", "int>", "variant"])
def test_a_type_that_a_table_cannot_have_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigurationError, match="Column more cannot be added"):
        session_of(Table(sqlite_catalog(tmp_path))).choose([("value", "binary"), ("more", kind)])
