"""Which values a table of a lake cannot hold is found before one is written."""

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.slots import CheckingSlot
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.delta.test_writer import added, context, writer_of
from tests.unit.sinks.iceberg.test_writer import Writing

COLUMNS = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("day", pa.string())])


def batch(ids: list[int | None], days: list[str | None] | None = None) -> pa.RecordBatch:
    texts = days or ["a"] * len(ids)
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(texts, pa.string())], ["id", "day"])


def opened(tmp_path: Path) -> tuple[Table, CheckingSlot]:
    table = Table(tmp_path / "table", COLUMNS, partition_by=["day"])
    return table, cast("CheckingSlot", writer_of(table).open(context()))


def test_iceberg_names_what_does_not_fit_and_writes_the_others(tmp_path: Path) -> None:
    """Its partitions are made of any text, and of null."""
    named = ["id", "p"]
    columns = pa.schema([COLUMNS.field("id"), COLUMNS.field("day").with_name("p")])
    writing = Writing(tmp_path, columns, divided=BucketTransform(4))
    slot = writing.writer().open(context())
    assert isinstance(slot, CheckingSlot)
    mixed = batch([0, 2**40, None, 3, 4, 5], ["a", "a", "b", "", None, "b"]).rename_columns(named)
    found = {one.row: one for one in slot.unfit(mixed)}
    assert sorted(found) == [1, 2]
    assert {one.kind.value for one in found.values()} == {"schema"}
    assert "does not fit the column id of the table" in found[1].reason
    assert found[2].reason.startswith("null does not fit")
    slot.write(mixed.take(pa.array([0, 3, 4, 5])))
    assert list(slot.unfit(batch([30]).rename_columns(named))) == [], "it is looked at, and not written"
    assert sorted(writing.added(slot.finish())["id"].to_pylist()) == [0, 3, 4, 5]


def test_every_value_that_does_not_fit_is_named_and_the_others_are_written(tmp_path: Path) -> None:
    table, slot = opened(tmp_path)
    mixed = batch([0, 2**40, None, 3, 4, 5], ["a", "a", "b", "", None, "b"])
    found = {one.row: one for one in slot.unfit(mixed)}
    assert sorted(found) == [1, 2, 3]
    assert {one.kind.value for one in found.values()} == {"schema"}
    assert "does not fit the column id of the table, which is int32 not null" in found[1].reason
    assert found[2].reason.startswith("null does not fit")
    assert "Delta reads it as null" in found[3].reason
    slot.write(mixed.take(pa.array([0, 4, 5])))
    fits = batch([*range(10, 20)])
    assert list(slot.unfit(fits)) == []
    slot.write(fits)
    assert list(slot.unfit(batch([30]))) == [], "it is looked at, and not written"
    vote = slot.finish()
    assert vote.records == 13
    assert sorted(added(table, vote).to_pyarrow_table()["id"].to_pylist()) == [0, 4, 5, *range(10, 20)]


def test_a_column_that_the_table_lacks_is_no_fault_of_a_record(tmp_path: Path) -> None:
    _, slot = opened(tmp_path)
    with pytest.raises(CheckpointFailedError, match="no column other"):
        list(slot.unfit(batch([1, 2]).rename_columns(["id", "other"])))
    slot.abandon()


def test_a_value_that_no_one_has_set_aside_fails_the_checkpoint(tmp_path: Path) -> None:
    _, slot = opened(tmp_path)
    wrong: Any = batch([1, None])
    list(slot.unfit(wrong))
    with pytest.raises(CheckpointFailedError, match="null does not fit the column id"):
        slot.write(wrong)
    slot.abandon()
