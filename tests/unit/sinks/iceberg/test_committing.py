"""A checkpoint is in an Iceberg table exactly once, whatever others do with the table. What holds for all tables of a
lake is in ``lake/test_committing.py``."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType

from onceward.connections.storage import StorageError
from onceward.dev.promises.sink_case import Jobs, from_json
from onceward.protocol.values import Outcome
from tests.unit.sinks.iceberg.tables import Table, sqlite_catalog
from tests.unit.sinks.lake.places import once_before
from tests.unit.sinks.lake.test_committing import committed


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(sqlite_catalog(tmp_path))


@pytest.fixture
def jobs(table: Table) -> Iterator[Jobs]:
    with table.jobs() as opened:
        yield opened


def in_the_catalogue(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Make something happen once when the library asks the catalogue to commit: all that it asserts is settled then."""
    once_before(monkeypatch, SqlCatalog, "commit_table", happens)


def expire(table: Table) -> None:
    """Expire all snapshots that may expire, as a clean-up does."""
    table.now().maintenance.expire_snapshots().older_than(datetime.now(UTC).replace(tzinfo=None)).commit()


# -- late, and again


def test_a_commit_that_is_held_in_the_library_lands_never_if_another_driver_has_committed(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The field's late landing: a commit is slow, another driver recovers it, and then it lands, too."""
    driver, following = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"], checkpoint=1)

    def successor() -> None:
        following.commits(from_json(made))
        following.commits(following.prepared([b"b"], checkpoint=2))

    in_the_catalogue(monkeypatch, successor)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a", b"b"]


def test_the_librarys_own_retry_would_add_the_files_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why its retries are switched off: of two processes that looked at one state, it commits both."""
    both = [table.now(), table.now()]
    for one in both:
        with one.transaction() as transaction:
            transaction.set_properties({"done": "1"})
            transaction.append(pa.table({"value": pa.array([b"a"], pa.binary())}))
    assert table.values() == [b"a", b"a"]


def test_a_catalogue_does_not_compare_properties(table: Table) -> None:
    """Why claims are no properties, and a fence is a snapshot."""
    both = [table.now(), table.now()]
    for number, one in enumerate(both):
        with one.transaction() as transaction:
            transaction.set_properties({"claim": str(number)})
    assert table.now().properties["claim"] == "1"


def test_the_proof_outlives_the_expiry_of_all_snapshots(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.commits(made)
    table.append(b"x")
    table.append(b"y")
    expire(table)
    assert not [one for one in table.now().snapshots() if one.summary and one.summary["onceward.job"]]
    assert table.system().outcome(made[0]).outcome is Outcome.COMMITTED
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a", b"x", b"y"]


def test_an_answer_that_is_lost_or_unknown_is_looked_into(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, commit = jobs.driver(), SqlCatalog.commit_table
    made = driver.prepared([b"a"])
    waiting = [CommitStateUnknownException("502")]

    def unanswered(catalog: SqlCatalog, *arguments: Any, **named: Any) -> Any:
        done = commit(catalog, *arguments, **named)
        if waiting:
            raise waiting.pop()
        return done

    monkeypatch.setattr(SqlCatalog, "commit_table", unanswered)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]
    assert len(table.now().snapshots()) == 1, "it was made once"


# -- others who change the table


@pytest.mark.parametrize("refused", ["columns", "partitions"])
def test_columns_or_partitions_that_change_while_the_library_commits_are_looked_at(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])

    def change() -> None:
        if refused == "columns":
            with table.now().update_schema() as columns:
                columns.add_column("more", StringType())
        else:
            with table.now().update_spec() as spec:
                spec.add_field("value", BucketTransform(2), "bucket")

    in_the_catalogue(monkeypatch, change)
    found = committed(driver, made)
    if refused == "columns":
        assert found.outcome is Outcome.COMMITTED
        assert table.rows().to_pylist() == [{"value": b"a", "more": None}]
    else:
        assert found.outcome is Outcome.IN_DOUBT
        assert "divided by partition spec 1 now, and they by 0" in found.evidence
        assert table.values() == []
        with table.now().update_spec() as spec:
            spec.remove_field("bucket")
        driver.commits(made)
        assert table.values() == [b"a"]


def test_columns_that_were_renamed_widened_added_or_dropped_cost_nothing(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path), pa.schema([("value", pa.binary()), ("n", pa.int32()), ("x", pa.int32())]))
    with table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        with table.now().update_schema() as columns:
            columns.rename_column("value", "renamed")
            columns.update_column("n", LongType())
            columns.add_column("more", StringType())
            columns.delete_column("x")
        driver.commits(made)
    assert table.rows().to_pylist() == [{"renamed": b"a", "n": None, "more": None}]


def test_a_column_of_another_type_or_that_may_not_be_null_gets_nothing(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    with table.now().update_schema(allow_incompatible_changes=True) as columns:
        columns.update_column("value", required=True)
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "column value may not be null now" in found.evidence
    assert table.values() == []


def test_a_table_that_is_upgraded_to_version_3_gets_nothing(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    change_metadata(table, '"format-version":2', '"format-version":3,"next-row-id":0')
    assert table.now().metadata.format_version == 3
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "apache/iceberg-python#1551" in found.evidence


def change_metadata(table: Table, before: str, after: str) -> None:
    """Change a table as a program does that can do more than the library."""
    metadata = Path(table.now().metadata_location.removeprefix("file://"))
    text = metadata.read_text()
    assert before in text
    metadata.write_text(text.replace(before, after))


def test_a_property_that_is_no_number_stops_all_commits(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    with table.now().transaction() as transaction:
        transaction.set_properties({f"onceward/{jobs.job}/sink": "x"})
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "what was committed last is unknown" in found.evidence
    assert table.values() == []


# -- failures


def test_a_catalogue_that_is_away_is_unknown_until_it_is_back(table: Table, jobs: Jobs, tmp_path: Path) -> None:
    driver, system = jobs.driver(), table.system()
    made = driver.prepared([b"a"])
    catalogue = tmp_path / "catalog.db"
    away = catalogue.rename(tmp_path / "away")
    catalogue.mkdir()
    table.location.forget()
    assert system.commit(driver.author, made, give_up=lambda: True) == []
    assert system.outcome(made[0]).outcome is Outcome.IN_DOUBT
    for call in (system.read_claim, system.leftovers):
        with pytest.raises(StorageError):
            call(jobs.job)
    asked = iter([False, False])

    def back() -> bool:
        if next(asked, True):
            catalogue.rmdir()
            away.rename(catalogue)
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
    before = set((table.path / "metadata").iterdir())

    def recording(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    driver.commits(made)
    new = set((table.path / "metadata").iterdir()) - before
    assert len(new) == 3, "metadata, the list of manifests, a manifest"
    assert {str(one) for one in (*new, table.path / "metadata")} <= flushed


def test_other_programs_keep_their_retries(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.commits(driver.prepared([b"a"]))
    assert not [name for name in table.now().properties if name.startswith("commit.retry")]


def test_another_reader_sees_the_checkpoint_in_the_tables_history(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.commits(driver.prepared([b"a"], checkpoint=7))
    snapshot = table.now().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["onceward.checkpoint"] == "7"


def test_a_fence_moves_the_table_so_that_a_held_commit_is_refused(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A property alone would not: the held commit would name files that are gone."""
    driver, other = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"])

    def others() -> None:
        table.remove_unused()
        assert committed(other, made).outcome is Outcome.LOST

    in_the_catalogue(monkeypatch, others)
    assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == []


def test_a_table_that_has_moved_gets_nothing(table: Table, jobs: Jobs, tmp_path: Path) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    elsewhere = f"file://{tmp_path}/elsewhere"
    metadata = Path(table.now().metadata_location.removeprefix("file://"))
    metadata.write_text(
        metadata.read_text().replace(f'"location":"{table.now().location()}"', f'"location":"{elsewhere}"')
    )
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert f"the table is in {elsewhere} now" in found.evidence
