"""A checkpoint is in a Delta table exactly once, whatever others do with the table. What holds for all tables of a lake
is in ``lake/test_committing.py``."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from onceward.connections.storage import StorageError
from onceward.dev.promises.sink_case import Jobs, from_json
from onceward.protocol.values import Outcome
from onceward.sinks.delta.control.table import LoadedTable
from tests.support.small_disk import fill, free, on_a_small_disk
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.lake.places import LARGE, once_before
from tests.unit.sinks.lake.test_committing import committed

FULL = """
import sys
from pathlib import Path
from tests.unit.sinks.delta.test_committing import commit_on_a_full_disk
commit_on_a_full_disk(Path(sys.argv[1]))
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


@pytest.fixture
def jobs(table: Table) -> Iterator[Jobs]:
    with table.jobs() as opened:
        yield opened


def test_an_optimize_between_look_and_commit_costs_nothing(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = jobs.driver()
    for checkpoint in (1, 2):
        driver.commits(driver.prepared([b"%d" % checkpoint], checkpoint=checkpoint))
    made = driver.prepared([b"3"], checkpoint=3)

    def optimize() -> None:
        assert table.now().optimize.compact()["numFilesRemoved"] == 2

    once_before(monkeypatch, LoadedTable, "commit", optimize)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    table.now().optimize.compact()
    assert committed(driver, made).outcome is Outcome.COMMITTED, "although its files were rewritten"
    assert table.values() == [b"1", b"2", b"3"]


def test_the_proof_outlives_an_optimize_a_restore_and_the_clean_up_of_the_log(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.commits(made)
    table.append(b"x")
    table.now().optimize.compact()
    table.now().restore(0)
    table.now().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.now().create_checkpoint()
    table.now().cleanup_metadata()
    assert len([*(table.path / "_delta_log").glob("*.json")]) < 5
    table.now().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert table.system().outcome(made[0]).outcome is Outcome.COMMITTED
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == []


@pytest.mark.parametrize("full", [False, True])
def test_a_vacuum_leaves_claims_and_notes_alone(table: Table, jobs: Jobs, full: bool) -> None:
    driver = jobs.driver()
    driver.takes(driver.claim(), seen=None)
    driver.write(LARGE)
    table.now().vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    driver.finds(driver.claim(), by=jobs.system())
    assert len(driver.leftovers()) == 1
    assert len(table.files()) == (0 if full else 1)


def test_files_that_fit_the_table_no_more_are_not_added(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    write_deltalake(table.path, pa.table({"value": [1]}), mode="overwrite", schema_mode="overwrite")
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "column value is long now and was binary" in found.evidence
    assert table.now().to_pyarrow_table()["value"].to_pylist() == [1]


def test_a_table_that_needs_more_than_the_library_can_do_since_the_vote_gets_nothing(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}
    (table.path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": protocol}))
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "Install a newer deltalake" in found.evidence
    assert table.values() == []


def test_a_table_that_is_away_is_unknown_until_it_is_back(table: Table, jobs: Jobs) -> None:
    driver, system = jobs.driver(), table.system()
    made = driver.prepared([b"a"])
    away = table.path.with_name("away")
    table.path.rename(away)
    assert system.commit(driver.author, made, give_up=lambda: True) == []
    assert system.outcome(made[0]).outcome is Outcome.IN_DOUBT
    for call in (system.read_claim, system.leftovers):
        with pytest.raises(StorageError):
            call(jobs.job)
    with pytest.raises(StorageError):
        driver.takes(driver.claim(), seen=None)
    assert not table.path.exists(), "nothing is made where the table was"
    asked = iter([False, False])

    def back() -> bool:
        if next(asked, True):
            away.rename(table.path)
        return False

    (found,) = system.commit(driver.author, made, give_up=back)
    assert found.outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


def test_a_commit_is_flushed_to_the_disk_before_it_is_reported(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library does not flush: a machine that loses its power would lose a commit that was reported."""
    driver, flushed, fsync = jobs.driver(), set[str](), os.fsync
    made = driver.prepared([b"a"])

    def recording(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    driver.commits(made)
    log = table.path / "_delta_log"
    assert {str(log), str(max(log.glob("*.json")))} <= flushed


def test_another_reader_sees_the_checkpoint_in_the_tables_history(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.commits(driver.prepared([b"a"], checkpoint=7))
    assert DeltaTable(table.path).history(1)[0]["onceward"]["checkpoint"] == 7


def test_a_checkpoint_waits_for_its_commit_through_all_that_others_do_with_the_table(table: Table, jobs: Jobs) -> None:
    driver, successor = jobs.driver(), jobs.driver(generation=2)
    driver.commits(driver.prepared([b"0"], checkpoint=1))
    made = driver.prepared([b"a"], [LARGE], checkpoint=2)
    for value in (b"x", b"y"):
        table.append(value)
    table.now().optimize.compact()
    table.now().vacuum(dry_run=False, full=True)
    table.now().restore(0)
    table.now().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.now().create_checkpoint()
    table.now().cleanup_metadata()
    assert table.values() == []
    before = table.now().version()
    for process in (successor.system, table.system()):
        assert committed(successor, from_json(made), process).outcome is Outcome.COMMITTED
        assert table.now().version() == before + 1
    assert table.values() == [LARGE, b"a"]


def test_a_checkpoint_waits_for_its_commit_until_a_full_disk_has_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if on_a_small_disk(disk, "true", megabytes=8).returncode != 0:
        pytest.skip("a file system in memory cannot be mounted here")
    ran = on_a_small_disk(disk, sys.executable, "-c", FULL, str(disk), megabytes=8)
    assert (ran.returncode, ran.stdout) == (0, "committed\n"), ran.stderr


def commit_on_a_full_disk(disk: Path) -> None:
    """Runs in a process of its own, which alone sees the disk."""
    table = Table(disk / "table")
    with table.jobs() as jobs:
        driver = jobs.driver()
        driver.takes(driver.claim(), seen=None)
        made = driver.prepared([b"a"], checkpoint=1)
        fill(disk)
        with pytest.raises(StorageError):
            driver.write(os.urandom(2**20), checkpoint=2)
        assert not driver.system.renew_claim(driver.claim(1), give_up=lambda: True)
        assert driver.system.commit(driver.author, made, give_up=lambda: True) == []
        assert driver.system.outcome(made[0]).outcome is Outcome.IN_DOUBT
        assert table.values() == []
        free(disk)
        for _ in range(2):
            driver.commits(made)
            assert table.now().version() == 1
        driver.renews(driver.claim(1))
        driver.sweep()
        assert (table.values(), len(table.files())) == ([b"a"], 1)
    print("committed")
