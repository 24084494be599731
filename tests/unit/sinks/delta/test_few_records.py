"""Slots with few records make no file each: their votes have the records, and the driver writes one file of them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceward.connections.storage import LocalStorage, StorageError
from onceward.dev.promises.sink_case import Jobs
from onceward.testing import SinkCase
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.delta.test_writer import EVERY_TYPE
from tests.unit.sinks.lake.places import LARGE


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


@pytest.fixture
def jobs(table: Table) -> Iterator[Jobs]:
    with table.jobs() as opened:
        yield opened


def test_a_checkpoint_of_slots_with_few_records_makes_one_file(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    votes = [driver.write(b"%d" % slot, b"%d." % slot, slot=slot) for slot in range(10)]
    assert table.files() == set(), "tasks write none"
    made = driver.pre_commit(*votes)
    assert len(table.files()) == 1
    driver.commits(made)
    written = [value for slot in range(10) for value in (b"%d" % slot, b"%d." % slot)]
    assert table.now().to_pyarrow_table()["value"].to_pylist() == written
    assert [*driver.leftovers()] == []


def test_slots_with_many_records_write_files_of_their_own(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    votes = [driver.write(LARGE, slot=0), driver.write(b"a", slot=1), driver.write(b"b", slot=2)]
    assert len(table.files()) == 1
    driver.commits(driver.pre_commit(*votes))
    assert len(table.files()) == 2
    assert table.values() == sorted([LARGE, b"a", b"b"])


def test_what_a_driver_gets_of_all_slots_is_limited(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    last = [driver.write(b"a", slot=slot) for slot in (127, 128)]
    assert len(table.files()) == 1
    assert [sorted(vote.body) for vote in last] == [["few"], ["files"]]
    vote = driver.write(os.urandom(250_000))
    assert len(vote.to_json()) < 2**19


def test_the_records_of_a_partition_go_into_one_file(tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.binary()), ("day", pa.int32())])
    table = Table(tmp_path / "table", schema, partition_by=["day"])

    def batch(values: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": values, "day": [int(value) % 3 for value in values]}, schema)

    with Jobs(SinkCase(sink=table.sink, system=table.system, visible=table.values, batch=batch, together=True)) as jobs:
        driver = jobs.driver()
        driver.commits(driver.prepared(*([b"%d" % (4 * slot + row) for row in range(4)] for slot in range(5))))
    assert len(table.files()) == 3
    found = table.now().to_pyarrow_table().to_pylist()
    assert sorted((int(row["value"]), row["day"]) for row in found) == [(number, number % 3) for number in range(20)]


def test_values_of_every_type_are_the_same_after_a_vote(tmp_path: Path) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in EVERY_TYPE.items()])
    columns = [pa.array(values, kind) for kind, values in EVERY_TYPE.values()]
    table = Table(tmp_path / "table", schema)
    case = SinkCase(
        sink=table.sink,
        system=table.system,
        visible=list,
        batch=lambda _: pa.RecordBatch.from_arrays(columns, schema=schema),
        together=True,
    )
    with Jobs(case) as jobs:
        driver = jobs.driver()
        slot = driver.open_slot()
        slot._opened.write(pa.RecordBatch.from_arrays(columns, schema=schema))
        vote = slot._opened.finish()
        assert [*vote.body] == ["few"]
        driver.commits(driver.pre_commit(vote))
    assert table.now().to_pyarrow_table().equals(pa.table(columns, schema=schema))


def test_a_driver_that_cannot_write_the_file_leaves_nothing(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = jobs.driver()
    vote = driver.write(b"a")

    def full(storage: LocalStorage, name: str) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "open", full)
        with pytest.raises(StorageError, match="full"):
            driver.pre_commit(vote)
    driver.sweep()
    assert (table.files(), [*driver.leftovers()]) == (set(), [])
    driver.commits(driver.pre_commit(vote))
    assert table.values() == [b"a"]
