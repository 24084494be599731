"""A checkpoint is in a table exactly once, however late its commit is and whatever others do meanwhile."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from onceward.common.errors import HaltedError
from onceward.connections.storage import LocalStorage, StorageError
from onceward.coordinator.service.kinds import part
from onceward.dev.promises.sink_case import Driver, Jobs, from_json
from onceward.protocol.committing import System
from onceward.protocol.values import Author, Committable, Document, JobName, Outcome, ParticipantName, Settlement
from onceward.sinks.delta.kind import DELTA
from onceward.sinks.iceberg.kind import ICEBERG
from onceward.sinks.lake.control import staged
from onceward.sinks.lake.control.tables import LakeTable
from onceward.sinks.lake.identifiers import staged_folder
from tests.unit.sinks.lake.conftest import PLACES
from tests.unit.sinks.lake.places import LARGE, LakePlace, in_processes, once_before, run_python

CHILD = """
import sys
from tests.unit.sinks.lake.test_committing import commit_in_a_child
commit_in_a_child(*sys.argv[1:])
"""
KINDS = {"delta": DELTA, "iceberg": ICEBERG}


@pytest.fixture
def between(table: LakePlace, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Make what it is given happen once, between the look at a table and the commit on it."""
    return lambda happens: once_before(monkeypatch, table.loaded, "commit", happens)


def committed(driver: Driver, made: Sequence[Committable], system: System | None = None) -> Settlement:
    (found,) = (system or driver.system).commit(driver.author, made)
    return found


def saved(made: Sequence[Committable], author: Author) -> str:
    body = made[0].document
    return json.dumps([body.kind, body.version, body.body, author.job, author.participant, author.generations[-1]])


def commit_in_a_child(kind_of_table: str, place: str, document: str, dies: str = "") -> None:
    """Commit in another process, which has only the document; ``dies`` there before or after the table has it."""
    opened, loaded_table = KINDS[kind_of_table], PLACES[kind_of_table].loaded
    configuration = part(kind_of_table, opened.configuration, "opened")("table", json.loads(place))
    system = part(kind_of_table, opened.system, "opened")(configuration)
    kind, version, body, job, sink, newest = json.loads(document)
    author = Author(job=JobName(job), participant=ParticipantName(sink), generations=range(1, newest + 1))
    commit = loaded_table.commit

    def dying(loaded: LakeTable, *arguments: Any, **named: Any) -> None:
        if dies == "after":
            commit(loaded, *arguments, **named)
        os.kill(os.getpid(), 9)

    if dies:
        loaded_table.commit = dying
    one = Committable(slot=0, document=Document(kind=kind, version=version, body=body))
    (found,) = system.commit(author, [one])
    print(found.outcome)


# -- several processes


def test_of_two_threads_that_looked_at_the_same_version_one_commits_and_both_know(
    table: LakePlace, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    together, commit = threading.Barrier(2), table.loaded.commit

    def at_once(loaded: LakeTable, *arguments: Any, **named: Any) -> str:
        together.wait(60)
        made: str = commit(loaded, *arguments, **named)
        return made

    monkeypatch.setattr(table.loaded, "commit", at_once)
    with ThreadPoolExecutor(2) as threads:
        outcomes = [one.outcome for one in threads.map(lambda _: committed(driver, made, table.system()), range(2))]
    assert outcomes == [Outcome.COMMITTED] * 2
    assert table.values() == [b"a", b"b"]


def test_processes_that_commit_the_same_checkpoint_at_once_commit_it_once(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    document = saved(driver.prepared([b"a"], [b"b"]), driver.author)
    assert in_processes(CHILD, [[table.kind, table.place, document]] * 4) == ["committed"] * 4
    assert table.values() == [b"a", b"b"]


@pytest.mark.parametrize("dies", ["before", "after"])
def test_after_a_kill_around_the_commit_another_process_commits_it_once(
    table: LakePlace, jobs: Jobs, dies: str
) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    assert run_python(CHILD, table.kind, table.place, saved(made, driver.author), dies).returncode == -9
    assert table.values() == ([b"a"] if dies == "after" else [])
    found = table.system().outcome(made[0]).outcome
    assert found is (Outcome.COMMITTED if dies == "after" else Outcome.IN_DOUBT)
    assert committed(driver, from_json(made)).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


def test_a_commit_that_is_held_back_lands_never_if_another_driver_has_committed_meanwhile(
    table: LakePlace, jobs: Jobs, between: Callable[[Callable[[], None]], None]
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


def test_what_another_store_has_passed_is_never_committed(table: LakePlace, jobs: Jobs) -> None:
    """A store was put back, or lost: two committables of the job exist that know nothing of each other."""
    old, new = jobs.driver(), jobs.driver()
    stale, made = old.prepared([b"old"]), new.prepared([b"new"])
    new.commits(made)
    found = committed(old, stale)
    assert found.outcome is Outcome.IN_DOUBT
    assert "It cannot be committed any more" in found.evidence
    assert table.values() == [b"new"]


def test_a_job_that_begins_again_at_checkpoint_1_is_committed(table: LakePlace, jobs: Jobs) -> None:
    """It was deleted, and its ids begin again; the table still has the app transaction of the former one."""
    for checkpoint in (5, 6):
        driver = jobs.driver()
        driver.commits(driver.prepared([b"former"], checkpoint=checkpoint))
    again = jobs.driver()
    again.commits(again.prepared([b"new"], checkpoint=1))
    assert table.values() == [b"former", b"former", b"new"]


def test_an_append_of_another_program_between_look_and_commit_costs_nothing(
    table: LakePlace, jobs: Jobs, between: Callable[[Callable[[], None]], None]
) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    between(lambda: table.append(b"stranger"))
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a", b"stranger"]


def test_files_that_a_vacuum_has_deleted_are_lost_and_the_loss_is_proved(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"], [b"b"])
    table.remove_unused()
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
    table: LakePlace, jobs: Jobs, between: Callable[[Callable[[], None]], None]
) -> None:
    """It would name files that are gone, and no reader could read the table."""
    driver, other = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"])

    def others() -> None:
        table.remove_unused()
        assert committed(other, made).outcome is Outcome.LOST

    between(others)
    assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == []


def test_a_file_that_was_changed_since_its_vote_is_not_committed(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    (file,) = table.files()
    (table.files_in / file).write_bytes(b"cut off")
    assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == []


def test_a_table_that_was_replaced_gets_nothing(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    table.replace()
    found = committed(driver, made)
    assert found.outcome is Outcome.IN_DOUBT
    assert "now has id" in found.evidence
    assert table.values() == []


def test_an_error_after_the_table_has_the_commit_is_looked_into(
    table: LakePlace, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the library fails to write a table checkpoint after the commit, or an answer is lost."""
    driver, commit = jobs.driver(), table.loaded.commit
    made = driver.prepared([b"a"])

    def fails_afterwards(loaded: LakeTable, *arguments: Any, **named: Any) -> None:
        commit(loaded, *arguments, **named)
        raise StorageError("no answer")

    monkeypatch.setattr(table.loaded, "commit", fails_afterwards)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


def test_an_abort_of_what_is_committed_halts_and_deletes_nothing(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    driver.commits(made)
    with pytest.raises(HaltedError, match="Nothing was deleted"):
        driver.aborts(made)
    assert table.values() == [b"a"]


def test_aborted_and_swept_files_are_deleted_and_committed_ones_are_not(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.commits(driver.prepared([b"a"], checkpoint=1))
    assert driver.leftovers() == []
    kept = table.files()
    driver.aborts(driver.prepared([b"b"], checkpoint=2))
    driver.write(LARGE, checkpoint=3)
    driver.sweep()
    assert table.files() == kept
    assert not [*(table.path / staged_folder(jobs.job)).iterdir()]


def test_a_sweep_does_not_delete_a_file_that_the_table_has(table: LakePlace, jobs: Jobs) -> None:
    """Its note is left where a process has ended between the commit and its removal, and a person has ruled."""
    driver = jobs.driver()
    made = driver.prepared([b"a"])
    assert run_python(CHILD, table.kind, table.place, saved(made, driver.author), "after").returncode == -9
    assert len(driver.leftovers()) == 1
    driver.sweep()
    assert driver.leftovers() == []
    assert table.values() == [b"a"]


def test_a_note_whose_file_was_not_begun_is_swept(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    driver.write(LARGE)
    (file,) = table.files()
    (table.files_in / file).unlink()
    driver.sweep()
    assert driver.leftovers() == []


def test_a_task_that_was_swept_before_it_makes_its_file_leaves_none(
    table: LakePlace, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = jobs.driver()
    slot = driver.open_slot()
    slot.write(LARGE)

    def sweep() -> None:
        driver.sweep()

    once_before(monkeypatch, LocalStorage, "open", sweep)
    with pytest.raises(StorageError, match="was swept"):
        slot.finish()
    slot.abandon()
    assert not table.files()


def test_a_file_that_is_made_in_the_middle_of_a_sweep_is_swept(
    table: LakePlace, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = jobs.driver()
    driver.write(LARGE)
    (file,) = table.files()
    (table.files_in / file).unlink()
    remove = staged.remove_notes

    def make_it_before(*arguments: Any) -> None:
        (table.files_in / file).touch()
        remove(*arguments)

    monkeypatch.setattr(staged, "remove_notes", make_it_before)
    driver.sweep()
    assert not table.files()


@pytest.mark.parametrize("path", ["../other/{}", "/tmp/{}", "s3://bucket/{}", "part-0001.parquet"])
def test_a_document_that_names_a_file_elsewhere_is_refused(table: LakePlace, jobs: Jobs, path: str) -> None:
    driver = jobs.driver()
    (made,) = driver.prepared([b"a"])
    (file,) = made.document.body["files"]
    body = {**made.document.body, "files": [{**file, table.named: path.format(file[table.named])}]}
    forged = replace(made, document=replace(made.document, body=body))
    for call in (driver.system.commit, driver.system.abort):
        with pytest.raises(HaltedError, match="not to be trusted"):
            call(driver.author, [forged])
