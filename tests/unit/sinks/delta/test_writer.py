"""What a task writes is what a reader finds, of every type; what a column cannot hold fails the checkpoint by name."""

import json
import os
import resource
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from onceward.common.errors import CheckpointFailedError
from onceward.connections.storage import LocalStorage, StorageError
from onceward.connectors.slots import SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.executor.writer import DeltaSlotWriter
from onceward.sinks.lake.identifiers import staged_folder
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.lake.places import run_python

JOB = "orders"
EVERY_TYPE: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "byte": (pa.int8(), [-128, 127, None]),
    "short": (pa.int16(), [None, 1, -32768]),
    "int": (pa.int32(), [1, None, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "float": (pa.float32(), [1.5, float("inf"), None]),
    "double": (pa.float64(), [0.1, None, -1e300]),
    "decimal": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678"), None, Decimal(-1)]),
    "text": (pa.string(), ["", "żółw 🐢", None]),
    "bytes": (pa.binary(), [b"", b"\x00\xff", None]),
    "day": (pa.date32(), [date(1, 1, 1), None, date(9999, 12, 31)]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [datetime(2026, 3, 29, 1, 30, 0, 1, UTC), None, datetime(1900, 1, 1, tzinfo=UTC)],
    ),
    "wall": (
        pa.timestamp("us"),
        [*map(datetime.fromisoformat, ("2026-03-29T02:30", "0999-01-01T00:00:00.1")), None],
    ),
    "struct": (
        pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
        [{"x": 1, "y": {"z": "a"}}, None, {"x": None, "y": None}],
    ),
    "list": (pa.list_(pa.int64()), [[1, None], [], None]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("a", 1.0)], [], None]),
}


NESTED = ("struct", "list", "map")


def writer_of(table: Table, **limits: int) -> DeltaSlotWriter:
    loaded = LoadedTable(table.location)
    columns = loaded.arrow_schema().serialize().to_pybytes()
    return DeltaSlotWriter(
        location=table.location, columns=columns, partition_columns=loaded.partition_columns, **limits
    )


def context(slot: int = 0) -> SlotContext:
    task = CheckpointTask(job=JOB, generation=1, checkpoint=1, splits=(), columns=(), sinks={"sink": {}})
    return SlotContext(task=task, sink="sink", slot=slot, attempt=7)


def written(table: Table, *batches: pa.RecordBatch, **limits: int) -> Vote:
    slot = writer_of(table, **limits).open(context())
    for batch in batches:
        slot.write(batch)
    return slot.finish()


def added(table: Table, vote: Vote) -> DeltaTable:
    """Add what was written to the table, without the sink's own code."""
    now = table.now()
    actions: list[Any] = [
        AddAction(one["path"], one["size"], one["partition_values"], one["modified_ms"], True, one["stats"])
        for one in vote.body["files"]
    ]
    now.create_write_transaction(actions, "append", now.schema(), now.metadata().partition_columns)
    return table.now()


def one_column(values: list[Any], kind: pa.DataType, name: str = "v") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], [name])


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_values_of_every_type_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    kind, values = EVERY_TYPE[name]
    table = Table(tmp_path / "table", pa.schema([("v", kind)]))
    vote = written(table, one_column(values[:1], kind), one_column(values[1:], kind))
    assert vote.records == len(values)
    found = added(table, vote).to_pyarrow_table()
    assert found["v"].type == kind
    assert found["v"].to_pylist() == values


@pytest.mark.parametrize("name", [name for name in EVERY_TYPE if name not in NESTED])
def test_files_are_not_skipped_for_a_value_that_they_have(tmp_path: Path, name: str) -> None:
    """Readers skip files by the statistics in the log."""
    kind, values = EVERY_TYPE[name]
    table = Table(tmp_path / "table", pa.schema([("v", kind)]))
    batches = [one_column([value], kind) for value in values]
    vote = written(table, *batches, group_bytes=0, file_bytes=1)
    assert len(vote.body["files"]) == len(values)
    now = added(table, vote)
    dataset = now.to_pyarrow_dataset()
    for value in values:
        if value is None:
            assert dataset.count_rows(filter=pc.field("v").is_null()) == 1
        else:
            assert dataset.count_rows(filter=pc.field("v") == pa.scalar(value, kind)) == 1
    bounds = [json.loads(one["stats"]) for one in vote.body["files"]]
    assert [one["numRecords"] for one in bounds] == [1] * len(values)


def test_a_file_that_has_no_bounds_for_one_column_is_found_by_the_others(tmp_path: Path) -> None:
    """The bounds of a footer leave out what is not a number, and a reader takes a missing bound for null."""
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64())])
    table = Table(tmp_path / "table", schema)
    rows = [[{"n": 1, "x": 2.0}], [{"n": 2, "x": float("nan")}, {"n": 3, "x": 1.0}]]
    vote = written(table, *(pa.RecordBatch.from_pylist(each, schema) for each in rows), group_bytes=0, file_bytes=1)
    dataset = added(table, vote).to_pyarrow_dataset()
    for number in (1, 2, 3):
        assert dataset.count_rows(filter=pc.field("n") == number) == 1
    assert 3 in dataset.to_table(filter=pc.field("x") == 1.0)["n"].to_pylist()
    assert ["minValues" in json.loads(one["stats"]) for one in vote.body["files"]] == [True, False]


def test_bounds_are_given_where_readers_can_skip_by_them(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string()), ("at", pa.timestamp("us", "UTC")), ("d", pa.date32())])
    table = Table(tmp_path / "table", schema)
    rows = [
        {"n": 3, "t": "b" * 40, "at": datetime(2026, 1, 2, tzinfo=UTC), "d": date(2026, 1, 2)},
        {"n": None, "t": "a" * 40, "at": None, "d": date(2026, 1, 1)},
    ]
    vote = written(table, *(pa.RecordBatch.from_pylist([row], schema) for row in rows), group_bytes=0)
    assert json.loads(vote.body["files"][0]["stats"]) == {
        "numRecords": 2,
        "minValues": {"n": 3, "t": "a" * 32, "at": "2026-01-02T00:00:00.000000Z", "d": "2026-01-01"},
        "maxValues": {"n": 3, "t": "b" * 32 + chr(0x10FFFF), "at": "2026-01-02T00:00:00.000000Z", "d": "2026-01-02"},
        "nullCount": {"n": 1, "t": 0, "at": 1, "d": 0},
    }


def test_columns_are_found_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())]))
    batch = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([1], pa.int8())})
    found = added(table, written(table, batch)).to_pyarrow_table().to_pylist()
    assert found == [{"a": 1, "b": "x", "c": None}]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.field("v", pa.int8()), pa.array([300], pa.int64())),
        (pa.field("v", pa.int64(), nullable=False), pa.array([None], pa.int64())),
        (pa.field("v", pa.decimal128(4, 2)), pa.array([Decimal("123.45")], pa.decimal128(10, 2))),
        (pa.field("v", pa.timestamp("us", "UTC")), pa.array([1], pa.timestamp("ns", "UTC"))),
        (pa.field("v", pa.string()), pa.array([b"\xff"], pa.binary())),
        (pa.field("v", pa.int64()), pa.array(["x"], pa.string())),
    ],
)
def test_a_value_that_a_column_cannot_hold_fails_the_checkpoint_and_names_the_column(
    tmp_path: Path, column: pa.Field, value: pa.Array
) -> None:
    table = Table(tmp_path / "table", pa.schema([column]))
    slot = writer_of(table).open(context())
    with pytest.raises(CheckpointFailedError, match="does not fit the column v of the table"):
        slot.write(pa.RecordBatch.from_arrays([value], ["v"]))
    slot.abandon()
    assert table.files() == set()


def test_a_column_that_the_table_lacks_fails_the_checkpoint(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    with pytest.raises(CheckpointFailedError, match="The table has no column more"):
        written(table, pa.RecordBatch.from_pydict({"value": [b"a"], "more": [1]}))


def test_small_batches_are_joined_and_large_files_divided(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", pa.schema([("v", pa.int64())]))
    batches = [one_column([*range(n * 100, n * 100 + 100)], pa.int64()) for n in range(20)]
    joined = written(table, *batches)
    (file,) = joined.body["files"]
    assert pq.read_metadata(table.path / file["path"]).num_row_groups == 1
    divided = written(table, *batches, group_bytes=4000, file_bytes=2000)
    assert len(divided.body["files"]) > 3
    assert sum(one["records"] for one in divided.body["files"]) == divided.records == 2000
    assert divided.bytes == sum((table.path / one["path"]).stat().st_size for one in divided.body["files"])
    assert added(table, divided).to_pyarrow_table()["v"].to_pylist() == [*range(2000)]


def test_memory_stays_bounded_by_the_row_group(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", pa.schema([("v", pa.binary())]))
    slot = writer_of(table, group_bytes=2**20).open(context())
    batch = one_column([b"x" * 1000] * 100, pa.binary())
    slot.write(batch)
    most, pool = 0, pa.default_memory_pool()
    before = pool.bytes_allocated()
    for _ in range(200):
        slot.write(pa.RecordBatch.from_arrays([pa.array([b"x" * 1000] * 100)], ["v"]))
        most = max(most, pool.bytes_allocated() - before)
    slot.finish()
    assert most < 8 * 2**20


PARTITIONS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a/b=c d%żółw 🐢", "x:y", " ", None]),
    "long": (pa.int64(), [-5, 2**63 - 1, None]),
    "flag": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [datetime(2026, 1, 1, 0, 0, 0, 1, UTC), datetime(1900, 1, 1, tzinfo=UTC), None],
    ),
    "wall": (pa.timestamp("us"), [*map(datetime.fromisoformat, ("2026-01-01T00:00:00.000001", "1900-01-01"))]),
    "decimal": (pa.decimal128(38, 4), [Decimal("12345678901234567890.1234"), Decimal("-1.0000"), Decimal(0), None]),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_of_every_type_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    kind, values = PARTITIONS[name]
    schema = pa.schema([("p", kind), ("v", pa.int64())])
    table = Table(tmp_path / "table", schema, partition_by=["p"])
    rows = [{"p": value, "v": number} for number in range(2) for value in values]
    vote = written(table, pa.RecordBatch.from_pylist(rows, schema))
    assert len(vote.body["files"]) == len(values)
    now = added(table, vote)
    found = now.to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda row: (row["v"], str(row["p"]))) == sorted(
        rows, key=lambda row: (row["v"], str(row["p"]))
    )
    for value in values:
        only = pc.field("p").is_null() if value is None else pc.field("p") == pa.scalar(value, kind)
        assert now.to_pyarrow_dataset().count_rows(filter=only) == 2


def test_records_of_a_partition_keep_their_order(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64()), ("p", pa.string()), ("q", pa.int32())])
    table = Table(tmp_path / "table", schema, partition_by=["p", "q"])
    rows = [{"v": number, "p": "ab"[number % 2], "q": number % 3} for number in range(300)]
    batches = [pa.RecordBatch.from_pylist(rows[at : at + 50], schema) for at in range(0, 300, 50)]
    found = added(table, written(table, *batches)).to_pyarrow_table().to_pylist()
    for p in "ab":
        for q in range(3):
            assert [row["v"] for row in found if (row["p"], row["q"]) == (p, q)] == [
                row["v"] for row in rows if (row["p"], row["q"]) == (p, q)
            ]
    assert len(found) == 300


def test_many_partitions_need_bounded_memory_and_few_open_files(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64()), ("p", pa.int64())])
    table = Table(tmp_path / "table", schema, partition_by=["p"])
    slot = writer_of(table, group_bytes=2000).open(context())
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    for number in range(3):
        rows = [{"v": number, "p": partition} for partition in range(200)]
        slot.write(pa.RecordBatch.from_pylist(rows, schema))
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    vote = slot.finish()
    assert 0 < most <= 100
    assert added(table, vote).to_pyarrow_table().num_rows == 600


def test_an_empty_text_does_not_become_a_null_partition(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64()), ("p", pa.string())])
    table = Table(tmp_path / "table", schema, partition_by=["p"])
    with pytest.raises(CheckpointFailedError, match="does not fit the column p"):
        written(table, pa.RecordBatch.from_pylist([{"v": 1, "p": ""}], schema))


def test_an_abandoned_slot_leaves_no_file_and_no_note(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    slot = writer_of(table, group_bytes=0, file_bytes=1).open(context())
    slot.write(one_column([b"a"], pa.binary(), "value"))
    closed = writer_of(table, group_bytes=0).open(context())
    closed.write(one_column([b"a"], pa.binary(), "value"))
    slot.abandon()
    closed.abandon()
    writer_of(table).open(context()).abandon()
    assert table.files() == set()
    assert not [*(table.path / staged_folder(JOB)).iterdir()]


DYING = """
import os, sys
import pyarrow as pa
from tests.unit.sinks.delta.test_writer import context, one_column, writer_of
from tests.unit.sinks.delta.tables import Table
table = Table.at(sys.argv[1])
slot = writer_of(table, group_bytes=0).open(context())
slot.write(one_column([b"a"], pa.binary(), "value"))
if sys.argv[2] == "finished":
    slot.finish()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["writing", "finished"])
def test_what_a_killed_writer_leaves_is_invisible_and_swept(tmp_path: Path, when: str) -> None:
    table = Table(tmp_path / "table")
    assert run_python(DYING, table.place, when).returncode == -9
    assert len(table.files()) == 1
    assert table.values() == []
    with table.jobs() as jobs:
        driver = jobs.driver(job=JOB, generation=2)
        assert len(driver.sweep()) == 1
    assert table.files() == set()


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files cannot grow above 64 kB, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_fails_the_slot(tmp_path: Path, small_files: None) -> None:
    table = Table(tmp_path / "table")
    slot = writer_of(table, group_bytes=0).open(context())
    with pytest.raises(StorageError, match="could not be written"):
        slot.write(one_column([os.urandom(1_000_000)], pa.binary(), "value"))
    slot.abandon()
    assert table.files() == set()


def test_a_file_and_its_name_are_durable_before_the_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, fsync = set[str](), os.fsync

    def recording(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    table = Table(tmp_path / "table")
    monkeypatch.setattr(os, "fsync", recording)
    vote = written(table, one_column([b"a"], pa.binary(), "value"))
    assert {str(table.path), str(table.path / vote.body["files"][0]["path"])} <= flushed


def test_a_file_is_not_created_over_another(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    assert (storage.create("a/b", b"1"), storage.create("a/b", b"2")) == (True, False)
    assert storage.read("a/b") == b"1"
    assert storage.names("a") == ["b"]
    with pytest.raises(StorageError):
        storage.open("a/b")
    assert (storage.read("a/c"), storage.size("a/c"), storage.names("c")) == (None, None, [])
