"""What a task writes is what a reader finds, of every type; what a column cannot hold fails the checkpoint by name."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, IsNull, Reference
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.tasks import Vote
from onceward.protocol.values import Author, CheckpointId, Generation, JobName, Outcome
from onceward.sinks.iceberg.driver.session import IcebergSession
from onceward.sinks.iceberg.executor.writer import IcebergSlotWriter
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.delta.test_writer import EVERY_TYPE, NESTED, context, one_column
from tests.unit.sinks.iceberg.tables import Table, sqlite_catalog

TYPES: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    **{name: one for name, one in EVERY_TYPE.items() if name not in ("byte", "short")},
    "fixed": (pa.binary(4), [b"abcd", None]),
    "long decimal": (pa.decimal128(18, 2), [Decimal("-1.25"), None, Decimal("9999999999999999.99")]),
    "short decimal": (pa.decimal128(5, 2), [Decimal("-1.25"), None, Decimal("999.99")]),
}


class Writing:
    """A table, and a driver that writes to it."""

    def __init__(
        self,
        at: Path,
        schema: Any,
        divided: Transform[Any, Any] | None = None,
        sink: Any = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self.table = Table(sqlite_catalog(at), schema, **options)
        if divided is not None:
            with self.table.now().update_spec() as update:
                update.add_field("p", divided, "part")
        self.session: IcebergSession = self.table.sink(**sink).connect(CONTEXT)
        self.session.begin_generation(Generation(1))

    def writer(self, **limits: int) -> IcebergSlotWriter:
        made: IcebergSlotWriter = replace(self.session.write(), vote_bytes=0, **limits)  # type: ignore[arg-type]
        return made

    def written(self, *batches: pa.RecordBatch, **limits: int) -> Vote:
        slot = self.writer(**limits).open(context())
        for batch in batches:
            slot.write(batch)
        return slot.finish()

    def added(self, vote: Vote) -> pa.Table:
        """Commit what was written, and read the table."""
        made = self.session.pre_commit(CheckpointId(1), [vote], [], leftovers=False).committables
        author = Author(job=JobName("orders"), participant=self.session.participant.name, generations=range(1, 2))
        (found,) = self.session.system().commit(author, made)
        assert found.outcome is Outcome.COMMITTED, found.evidence
        return self.table.rows()


def only(column: str, value: Any) -> Any:
    """A filter for one value."""
    equal: Any = EqualTo
    missing: Any = IsNull
    return missing(Reference(column)) if value is None else equal(Reference(column), value)


@pytest.mark.parametrize("name", TYPES)
def test_values_of_every_type_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    kind, values = TYPES[name]
    writing = Writing(tmp_path, pa.schema([("v", kind)]))
    vote = writing.written(one_column(values[:1], kind), one_column(values[1:], kind))
    assert vote.records == len(values)
    assert writing.added(vote)["v"].to_pylist() == values


@pytest.mark.parametrize("name", [name for name in TYPES if name not in NESTED])
def test_files_are_not_skipped_for_a_value_that_they_have(tmp_path: Path, name: str) -> None:
    """Readers skip files by the statistics in manifests."""
    kind, values = TYPES[name]
    writing = Writing(tmp_path, pa.schema([("v", kind)]))
    writing.added(writing.written(*(one_column([value], kind) for value in values), file_bytes=1, group_bytes=0))
    for value in values:
        if value == float("inf") or (name == "fixed" and value is not None):
            continue  # the library has no literal for it
        if isinstance(value, Decimal):
            value = value.quantize(Decimal(1).scaleb(-kind.scale), context=Context(prec=38))
        assert writing.table.now().scan(row_filter=only("v", value)).to_arrow()["v"].to_pylist() == [value]


def test_row_groups_are_large_enough_to_cost_little_more_than_the_librarys(tmp_path: Path) -> None:
    """Measured: groups of half the size take 1.4 times the library's CPU time."""
    writing = Writing(tmp_path, pa.schema([("v", pa.binary())]))
    value = one_column([bytes(2**20)], pa.binary())
    writing.added(writing.written(*[value] * 100))
    (file,) = writing.table.files()
    assert pq.read_metadata(writing.table.files_in / file).num_row_groups == 2


def test_other_files_are_skipped(tmp_path: Path) -> None:
    writing = Writing(tmp_path, pa.schema([("v", pa.int64())]))
    writing.added(writing.written(*(one_column([n], pa.int64()) for n in range(5)), file_bytes=1, group_bytes=0))
    (read,) = writing.table.now().scan(row_filter=only("v", 3)).plan_files()
    assert read.file.record_count == 1


def test_columns_are_found_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    writing = Writing(tmp_path, pa.schema([("a", pa.int64()), ("b ö", pa.string()), ("c", pa.float64())]))
    batch = pa.RecordBatch.from_pydict({"b ö": ["x"], "a": pa.array([1], pa.int8())})
    assert writing.added(writing.written(batch)).to_pylist() == [{"a": 1, "b ö": "x", "c": None}]


NOT_NULL = Schema(NestedField(1, "v", LongType(), required=True))
INSIDE = Schema(
    NestedField(1, "v", StructType(NestedField(2, "a", LongType(), required=True)), required=False),
)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (pa.schema([("v", pa.int32())]), pa.array([2**40], pa.int64())),
        (NOT_NULL, pa.array([None], pa.int64())),
        (INSIDE, pa.array([{"a": None}], pa.struct([("a", pa.int64())]))),
        (pa.schema([("v", pa.decimal128(4, 2))]), pa.array([Decimal("123.45")], pa.decimal128(10, 2))),
        (pa.schema([("v", pa.timestamp("us", "UTC"))]), pa.array([1], pa.timestamp("ns", "UTC"))),
        (pa.schema([("v", pa.string())]), pa.array([b"\xff"], pa.binary())),
        (pa.schema([("v", pa.binary(4))]), pa.array([b"abc"], pa.binary())),
        (pa.schema([("v", pa.int64())]), pa.array(["x"], pa.string())),
    ],
)
def test_a_value_that_a_column_cannot_hold_fails_the_checkpoint_and_names_the_column(
    tmp_path: Path, schema: Any, value: pa.Array
) -> None:
    writing = Writing(tmp_path, schema)
    slot = writing.writer().open(context())
    with pytest.raises(CheckpointFailedError, match="does not fit the column v of the table"):
        slot.write(pa.RecordBatch.from_arrays([value], ["v"]))
    slot.abandon()
    assert writing.table.files() == set()


def test_members_that_may_not_be_null_are_written(tmp_path: Path) -> None:
    writing = Writing(tmp_path, INSIDE)
    vote = writing.written(pa.RecordBatch.from_pylist([{"v": {"a": 1}}, {"v": None}]))
    assert writing.added(vote).to_pylist() == [{"v": {"a": 1}}, {"v": None}]


def test_files_have_the_ids_of_columns_and_what_the_table_says_of_parquet(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    writing = Writing(tmp_path, schema, properties={"write.parquet.compression-codec": "gzip"})
    writing.written(pa.RecordBatch.from_pylist([{"a": 1, "b": ["x"]}]))
    (file,) = writing.table.files()
    footer = pq.read_metadata(writing.table.files_in / file)
    assert footer.row_group(0).column(0).compression == "GZIP"
    assert [footer.schema.column(place).path for place in range(2)] == ["a", "b.list.element"]
    found = pq.read_schema(writing.table.files_in / file)
    assert [field.metadata[b"PARQUET:field_id"] for field in found] == [b"1", b"2"]


# -- partitions


INSTANTS = [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), None]
PARTITIONS: Mapping[str, tuple[Transform[Any, Any], pa.DataType, list[Any]]] = {
    "text": (IdentityTransform(), pa.string(), ["", "a/b=c d%żółw 🐢", None]),
    "long": (IdentityTransform(), pa.int64(), [-5, 2**63 - 1, None]),
    "flag": (IdentityTransform(), pa.bool_(), [True, False, None]),
    "date": (IdentityTransform(), pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "instant": (IdentityTransform(), pa.timestamp("us", "UTC"), INSTANTS),
    "wall": (IdentityTransform(), pa.timestamp("us"), [datetime(1900, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
    "decimal": (IdentityTransform(), pa.decimal128(20, 4), [Decimal("-1.0000"), Decimal("12345678.1234"), None]),
    "bucket": (BucketTransform(4), pa.string(), ["a", "b", "c", "d", None]),
    "bucket of long": (BucketTransform(4), pa.int64(), [1, -1, 2**40, None]),
    "truncated": (TruncateTransform(2), pa.string(), ["abc", "abd", "x", "", None]),
    "truncated long": (TruncateTransform(10), pa.int64(), [-1, 5, 15, None]),
    "year": (YearTransform(), pa.timestamp("us", "UTC"), INSTANTS),
    "month": (MonthTransform(), pa.date32(), [date(2026, 1, 31), date(1969, 12, 31), None]),
    "day": (DayTransform(), pa.timestamp("us", "UTC"), INSTANTS),
    "hour": (HourTransform(), pa.timestamp("us", "UTC"), INSTANTS),
    "void": (VoidTransform(), pa.string(), ["a", None]),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_of_every_transform_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """A reader skips files by their partitions, so a wrong one hides records."""
    transform, kind, values = PARTITIONS[name]
    schema = pa.schema([("p", kind), ("v", pa.int64())])
    writing = Writing(tmp_path, schema, divided=transform)
    rows = [{"p": value, "v": number} for number in range(2) for value in values]
    batch = pa.RecordBatch.from_pylist(rows, schema)
    found = writing.added(writing.written(batch)).to_pylist()
    assert sorted(found, key=str) == sorted(rows, key=str)
    ours = partitions_of(writing.table)
    for value in values:
        assert writing.table.now().scan(row_filter=only("p", value)).to_arrow().num_rows == 2
    if name != "void":  # the library writes no such tables
        writing.table.now().overwrite(pa.Table.from_batches([batch]))
        assert partitions_of(writing.table) == ours


def partitions_of(table: Table) -> list[tuple[Any, int]]:
    files = table.now().inspect.data_files().to_pylist()
    return sorted((str(one["partition"]), one["record_count"]) for one in files)


def test_two_transforms_of_one_column_and_of_a_member_divide_together(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "p", StringType(), required=False),
        NestedField(2, "s", StructType(NestedField(3, "q", IntegerType(), required=False)), required=False),
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(2), "bucket"),
        PartitionField(1, 1001, TruncateTransform(1), "letter"),
        PartitionField(3, 1002, IdentityTransform(), "q"),
    )
    writing = Writing(tmp_path, schema, partition_spec=spec)
    rows: list[dict[str, Any]] = [{"p": "ab"[number % 2] + str(number), "s": {"q": number % 3}} for number in range(60)]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 20]) for at in (0, 20, 40)]
    found = writing.added(writing.written(*batches)).to_pylist()
    assert sorted(found, key=str) == sorted(rows, key=str)
    for letter in "ab":
        for q in range(3):
            ours = [one["p"] for one in rows if (one["p"][0], one["s"]["q"]) == (letter, q)]
            assert sorted(one["p"] for one in found if (one["p"][0], one["s"]["q"]) == (letter, q)) == sorted(ours)
    parts = [one["partition"] for one in writing.table.now().inspect.data_files().to_pylist()]
    assert {(one["letter"], one["q"]) for one in parts} == {(letter, q) for letter in "ab" for q in range(3)}
