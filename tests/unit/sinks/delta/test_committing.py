"""A checkpoint is in a Delta table exactly once, however late its commit is and whatever others do meanwhile."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from onceward.common.errors import HaltedError
from onceward.connections.storage import StorageError
from onceward.dev.promises.sink_case import Driver, Jobs, from_json
from onceward.protocol.values import Author, Committable, Document, JobName, Outcome, ParticipantName, Settlement
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.location import location_of
from onceward.sinks.lake.identifiers import staged_folder
from tests.unit.sinks.delta.tables import Table, in_processes, run_python

CHILD = """
import os, sys
from pathlib import Path
from tests.unit.sinks.delta.test_committing import commit_in_a_child
commit_in_a_child(*sys.argv[1:])
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


@pytest.fixture
def jobs(table: Table) -> Iterator[Jobs]:
    with table.jobs() as opened:
        yield opened


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Make what it is given happen once, between the look at a table and the commit on it."""

    def once(happens: Callable[[], None]) -> None:
        commit, waiting = LoadedTable.commit, [happens]

        def commit_later(loaded: LoadedTable, *arguments: Any, **named: Any) -> str:
            if waiting:
                waiting.pop()()
            return commit(loaded, *arguments, **named)

        monkeypatch.setattr(LoadedTable, "commit", commit_later)

    return once


def committed(driver: Driver, made: Sequence[Committable], system: DeltaSystem | None = None) -> Settlement:
    (found,) = (system or driver.system).commit(driver.author, made)
    return found


def saved(made: Sequence[Committable], author: Author) -> str:
    body = made[0].document
    return json.dumps([body.kind, body.version, body.body, author.job, author.participant, author.generations[-1]])


def commit_in_a_child(place: str, document: str, dies: str = "") -> None:
    """Commit in another process, which has only the document; ``dies`` there before or after the table has it."""
    kind, version, body, job, sink, newest = json.loads(document)
    author = Author(job=JobName(job), participant=ParticipantName(sink), generations=range(1, newest + 1))
    commit = LoadedTable.commit

    def dying(loaded: LoadedTable, *arguments: Any, **named: Any) -> None:
        if dies == "after":
            commit(loaded, *arguments, **named)
        os.kill(os.getpid(), 9)

    if dies:
        LoadedTable.commit = dying  # type: ignore[assignment, method-assign]
    one = Committable(slot=0, document=Document(kind=kind, version=version, body=body))
    (found,) = DeltaSystem.open(location_of("table", json.loads(place))).commit(author, [one])
    print(found.outcome)


# -- several processes


def test_of_two_threads_that_looked_at_the_same_version_one_commits_and_both_know(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    together, commit = threading.Barrier(2), LoadedTable.commit

    def at_once(loaded: LoadedTable, *arguments: Any, **named: Any) -> str:
        together.wait(60)
        return commit(loaded, *arguments, **named)

    monkeypatch.setattr(LoadedTable, "commit", at_once)
    with ThreadPoolExecutor(2) as threads:
        outcomes = [one.outcome for one in threads.map(lambda _: committed(driver, made, table.system()), range(2))]
    assert outcomes == [Outcome.COMMITTED] * 2
    assert table.values() == [b"a", b"b"]


def test_processes_that_commit_the_same_checkpoint_at_once_commit_it_once(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    document = saved(driver.prepared([b"a"], [b"b"]), driver.author)
    assert in_processes(CHILD, [[table.place, document]] * 4) == ["committed"] * 4
    assert table.values() == [b"a", b"b"]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_after_a_kill_around_the_commit_another_process_commits_it_once(table: Table, jobs: Jobs, dies: str) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    assert run_python(CHILD, table.place, saved(made, driver.author), dies).returncode == -9
    assert table.values() == ([b"a"] if dies == "after" else [])
    found = table.system().outcome(made[0]).outcome
    assert found is (Outcome.COMMITTED if dies == "after" else Outcome.IN_DOUBT)
    assert committed(driver, from_json(made)).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


def test_a_commit_that_is_held_back_lands_never_if_another_driver_has_committed_meanwhile(
    table: Table, jobs: Jobs, between: Callable[[Callable[[], None]], None]
) -> None:
    """The driver was slow, and its successor has recovered and written on. The held commit has looked long before."""
    driver, following = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"], checkpoint=1)

    def successor() -> None:
        following.commits(from_json(made))
        following.commits(following.prepared([b"b"], checkpoint=2))

    between(successor)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a", b"b"]


def test_what_another_store_has_passed_is_never_committed(table: Table, jobs: Jobs) -> None:
    """A store was put back, or lost: two committables of the job exist that know nothing of each other."""
    old, new = jobs.driver(), jobs.driver()
    stale, made = old.prepared([b"old"]), new.prepared([b"new"])
    new.commits(made)
    found = committed(old, stale)
    assert found.outcome is Outcome.IN_DOUBT
    assert "It cannot be committed any more" in found.evidence
    assert table.values() == [b"new"]


def test_a_job_that_begins_again_at_checkpoint_1_is_committed(table: Table, jobs: Jobs) -> None:
    """It was deleted, and its ids begin again; the table still has the app transaction of the former one."""
    for checkpoint in (5, 6):
        driver = jobs.driver()
        driver.commits(driver.prepared([b"former"], checkpoint=checkpoint))
    again = jobs.driver()
    again.commits(again.prepared([b"new"], checkpoint=1))
    assert table.values() == [b"former", b"former", b"new"]


# -- others who write to the table


def test_an_append_of_another_program_between_look_and_commit_costs_nothing(
    table: Table, jobs: Jobs, between: Callable[[Callable[[], None]], None]
) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    between(lambda: table.append(b"stranger"))
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a", b"stranger"]


def test_an_optimize_between_look_and_commit_costs_nothing(
    table: Table, jobs: Jobs, between: Callable[[Callable[[], None]], None]
) -> None:
    driver = jobs.driver()
    for checkpoint in (1, 2):
        driver.commits(driver.prepared([b"%d" % checkpoint], checkpoint=checkpoint))
    made = driver.prepared([b"3"], checkpoint=3)

    def optimize() -> None:
        assert table.now().optimize.compact()["numFilesRemoved"] == 2

    between(optimize)
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
    driver.write(b"a")
    table.now().vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    driver.finds(driver.claim(), by=jobs.system())
    assert len(driver.leftovers()) == 1
    assert len(table.files()) == (0 if full else 1)


def test_files_that_a_vacuum_has_deleted_are_lost_and_the_loss_is_proved(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    table.now().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert table.system().outcome(made[0]).outcome is Outcome.IN_DOUBT
    for _ in range(2):
        found = committed(driver, made)
        assert found.outcome is Outcome.LOST
        assert "gone" in found.evidence
    assert table.system().outcome(made[0]).outcome is Outcome.LOST
    assert table.values() == []
    driver.commits(driver.prepared([b"c"], checkpoint=2))
    assert table.values() == [b"c"]


def test_a_commit_that_looked_before_a_vacuum_does_not_land_after_the_loss_is_proved(
    table: Table, jobs: Jobs, between: Callable[[Callable[[], None]], None]
) -> None:
    """It would name files that are gone, and no reader could read the table."""
    driver, other = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"])

    def others() -> None:
        table.now().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert committed(other, made).outcome is Outcome.LOST

    between(others)
    assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == []


def test_a_file_that_was_changed_since_its_vote_is_not_committed(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    (file,) = table.files()
    (table.path / file).write_bytes(b"cut off")
    assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == []


def test_a_table_that_was_replaced_gets_nothing(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    aside = table.path.with_name("aside")
    table.path.rename(aside)
    other = Table(table.path)
    for file in aside.glob("*.parquet"):
        shutil.copy(file, table.path)
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "now has id" in found.evidence
    assert other.values() == []


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


# -- failures


def test_an_error_after_the_table_has_the_commit_is_looked_into(
    table: Table, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the library fails to write a table checkpoint after the commit, or an answer is lost."""
    driver, commit = jobs.driver(), LoadedTable.commit
    made = driver.prepared([b"a"])

    def fails_afterwards(loaded: LoadedTable, *arguments: Any, **named: Any) -> None:
        commit(loaded, *arguments, **named)
        raise StorageError("no answer")

    monkeypatch.setattr(LoadedTable, "commit", fails_afterwards)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


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


def test_an_abort_of_what_is_committed_halts_and_deletes_nothing(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.commits(made)
    with pytest.raises(HaltedError, match="Nothing was deleted"):
        driver.aborts(made)
    assert table.values() == [b"a"]


# -- leftovers


def test_aborted_and_swept_files_are_deleted_and_committed_ones_are_not(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.commits(driver.prepared([b"a"], checkpoint=1))
    assert driver.leftovers() == []
    kept = table.files()
    driver.aborts(driver.prepared([b"b"], checkpoint=2))
    driver.write(b"c", checkpoint=3)
    driver.sweep()
    assert table.files() == kept
    assert not [*(table.path / staged_folder(jobs.job)).iterdir()]


def test_a_sweep_does_not_delete_a_file_that_the_table_has(table: Table, jobs: Jobs) -> None:
    """Its note is left where a process has ended between the commit and its removal, and a person has ruled."""
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    assert run_python(CHILD, table.place, saved(made, driver.author), "after").returncode == -9
    assert len(driver.leftovers()) == 1
    driver.sweep()
    assert driver.leftovers() == []
    assert table.values() == [b"a"]


def test_a_note_whose_file_was_not_begun_is_swept(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.write(b"a")
    (file,) = table.files()
    (table.path / file).unlink()
    driver.sweep()
    assert driver.leftovers() == []


@pytest.mark.parametrize("path", ["../other/{}", "/tmp/{}", "s3://bucket/{}", "part-0001.parquet"])
def test_a_document_that_names_a_file_elsewhere_is_refused(table: Table, jobs: Jobs, path: str) -> None:
    driver = jobs.driver()
    (made,) = driver.prepared([b"a"])
    (file,) = made.document.body["files"]
    body = {**made.document.body, "files": [{**file, "path": path.format(file["path"])}]}
    forged = replace(made, document=replace(made.document, body=body))
    for call in (driver.system.commit, driver.system.abort):
        with pytest.raises(HaltedError, match="not to be trusted"):
            call(driver.author, [forged])


def test_another_reader_sees_the_checkpoint_in_the_tables_history(table: Table, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.commits(driver.prepared([b"a"], checkpoint=7))
    assert DeltaTable(table.path).history(1)[0]["onceward"]["checkpoint"] == 7
