"""Columns that a table lacks are added before anything is written, and only if the sink may."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType

from onceward import DeltaSink
from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.connectors.interfaces import JobContext
from onceward.protocol.values import JobName
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.driver.session import DeltaSession
from onceward.sinks.lake.driver.types import parse_type, spark_type
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.delta.test_writer import EVERY_TYPE, added, context

GIVEN = [("value", "binary"), ("more", "struct<a:int,b:array<string>>")]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def session_of(table: Table, schema: Any = "evolve") -> DeltaSession:
    sink = DeltaSink(table.path, schema=schema)
    return sink.connect(JobContext(job=JobName("orders"), checkpoint_timeout=timedelta(minutes=2)))


def test_a_new_column_is_refused_if_the_schema_is_strict(table: Table) -> None:
    with pytest.raises(ConfigurationError, match="more: the table has no such column"):
        session_of(table, "strict").choose(GIVEN)
    with pytest.raises(ConfigurationError, match="neither 'strict' nor 'evolve'"):
        session_of(table, "loose")


def test_a_new_column_is_added_with_its_values_and_is_null_before(table: Table) -> None:
    table.append(b"before")
    session = session_of(table)
    assert [one.name for one in session.choose(GIVEN)] == ["value", "more"]
    assert table.now().version() == 1, "choosing asks no one"
    slot = replace(session.write(), vote_bytes=0).open(context())
    slot.write(pa.RecordBatch.from_pylist([{"value": b"a", "more": {"a": 1, "b": ["x"]}}]))
    found = added(table, slot.finish()).to_pyarrow_table().to_pylist()
    assert {"value": b"before", "more": None} in found
    assert {"value": b"a", "more": {"a": 1, "b": ["x"]}} in found
    session.choose(GIVEN)
    session.write()
    assert table.now().version() == 3, "nothing is added twice"


@pytest.mark.parametrize("kind", ["struct<a:int>", "string"])
def test_another_program_that_adds_the_column_or_commits_meanwhile_costs_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    session = session_of(table)
    session.choose([("value", "binary"), ("more", "string")])
    add, waiting = LoadedTable.add_columns, [True]

    def slowly(loaded: LoadedTable, *arguments: Any) -> None:
        if waiting:
            waiting.pop()
            table.append(b"x")
            others = Field("more", PrimitiveType("string" if kind == "string" else "long"))
            table.now().alter.add_columns([others])
        add(loaded, *arguments)

    monkeypatch.setattr(LoadedTable, "add_columns", slowly)
    if kind == "string":
        assert session.write().schema.names == ["value", "more"]
    else:
        with pytest.raises(CheckpointFailedError, match="another program has added it as bigint"):
            session.write()


def test_types_of_new_columns_are_those_of_spark(tmp_path: Path) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in EVERY_TYPE.items()])
    for field in LoadedTable(Table(tmp_path / "table", schema).location).fields():
        assert spark_type(parse_type(spark_type(field["type"]))) == spark_type(field["type"])


@pytest.mark.parametrize("kind", ["void", "interval day", "array<void>", "struct<>", "map<string>", "int>", "variant"])
def test_a_type_that_a_table_cannot_have_is_named(table: Table, kind: str) -> None:
    with pytest.raises(ConfigurationError, match="Column more cannot be added"):
        session_of(table).choose([("value", "binary"), ("more", kind)])
