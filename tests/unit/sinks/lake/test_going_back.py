"""A table that was restored to an earlier state, or whose older copy was put back, is noticed before it gets more."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onceward.common.errors import HaltedError
from onceward.dev.promises.sink_case import Driver, Jobs, from_json
from onceward.protocol.values import Committable, Document, Outcome
from tests.support.commands import onceward, parsed
from tests.unit.sinks.delta.tables import Table as DeltaPlace
from tests.unit.sinks.lake.conftest import PLACES, new_place
from tests.unit.sinks.lake.places import LakePlace
from tests.unit.sinks.lake.test_committing import committed
from tests.unit.sinks.lake.test_job import Place


def commits(driver: Driver, checkpoint: int) -> tuple[Committable, ...]:
    made = driver.prepared([b"%d" % checkpoint], checkpoint=checkpoint)
    driver.commits(made)
    return made


def restored(table: LakePlace) -> Callable[[], None]:
    """Restore it to its present state later."""
    state = table.state()
    return lambda: table.restore(state)


def put_back(table: LakePlace) -> Callable[[], None]:
    return table.saves()


@pytest.mark.parametrize("goes_back", [restored, put_back])
def test_a_table_that_went_back_gets_nothing_more_and_is_noticed_at_a_start(
    table: LakePlace, jobs: Jobs, goes_back: Callable[[LakePlace], Callable[[], None]]
) -> None:
    driver = jobs.driver()
    commits(driver, 1)
    to_the_first = goes_back(table)
    commits(driver, 2)
    last = commits(driver, 3)
    newest = table.state()
    to_the_first()
    later = driver.prepared([b"4"], checkpoint=4)
    for system in (driver.system, jobs.system()):
        found = committed(driver, from_json(later), system)
        assert found.outcome is Outcome.IN_DOUBT
        assert "Checkpoint 3 of job" in found.evidence
        assert system.outcome(later[0]).outcome is Outcome.IN_DOUBT
        with pytest.raises(HaltedError, match="The newest checkpoint of the job that it has is 1;") as halted:
            system.confirm(last)
        for command in re.findall(r"onceward (resolve .*?'|restore .*?')", f"{found.evidence} {halted.value}"):
            assert parsed([*command.replace("'NAME: REASON'", "reason").split()])
    assert table.values() == [b"1"]
    if goes_back is restored:
        table.restore(newest)
        jobs.system().confirm(last)
        assert committed(driver, later).outcome is Outcome.COMMITTED
        assert table.values() == [b"1", b"2", b"3", b"4"]


def test_a_table_that_went_back_by_one_commit_is_noticed_by_the_process_that_made_it(
    table: LakePlace, jobs: Jobs
) -> None:
    driver = jobs.driver()
    commits(driver, 1)
    to_the_first = restored(table)
    made, later = (driver.prepared([b"%d" % one], checkpoint=one) for one in (2, 3))
    driver.commits(made)
    to_the_first()
    assert committed(driver, later).outcome is Outcome.IN_DOUBT
    assert table.values() == [b"1"]


def test_a_job_that_was_restored_with_its_table_writes_again_what_it_lacks(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    commits(driver, 1)
    to_the_first = restored(table)
    for checkpoint in (2, 3):
        commits(driver, checkpoint)
    to_the_first()
    following = jobs.driver(generation=2)
    following.system.confirm(())  # a restore has no committables
    for checkpoint in (5, 6):
        last = commits(following, checkpoint)
    jobs.system().confirm(last)
    assert table.values() == [b"1", b"5", b"6"]


def test_a_restore_to_a_state_that_has_the_last_checkpoint_is_no_loss(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    commits(driver, 1)
    last = commits(driver, 2)
    state = table.state()
    table.append(b"x")
    table.restore(state)
    table.append(b"y")
    jobs.system().confirm(last)
    last = commits(driver, 3)
    jobs.system().confirm(last)
    assert table.values() == [b"1", b"2", b"3", b"y"]


def test_a_table_that_was_created_again_is_noticed_at_a_start(table: LakePlace, jobs: Jobs) -> None:
    last = commits(jobs.driver(), 1)
    table.replace()
    with pytest.raises(HaltedError, match="dropped and created again"):
        jobs.system().confirm(last)


def test_a_checkpoint_in_another_table_proves_nothing_of_this_one(table: LakePlace, jobs: Jobs, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    other = new_place(table.kind, elsewhere)
    with other.jobs() as others:
        last = commits(others.driver(), 1)
    jobs.system().confirm(last)
    topic = Committable(slot=0, document=Document(kind="kafka-transaction", version=1, body={}))
    jobs.system().confirm([topic])


def test_a_committable_of_an_earlier_release_names_no_commit_before_it(table: LakePlace, jobs: Jobs) -> None:
    driver = jobs.driver()
    commits(driver, 1)
    (made,) = driver.prepared([b"2"], checkpoint=2)
    assert made.document.body["after"]["checkpoint"] == 1
    body = {key: value for key, value in made.document.body.items() if key != "after"}
    former = replace(made, document=replace(made.document, body=body))
    assert committed(driver, [former], jobs.system()).outcome is Outcome.COMMITTED


def test_what_history_does_not_show_any_more_is_no_loss(tmp_path: Path) -> None:
    table = DeltaPlace(tmp_path / "table")
    with table.jobs() as jobs:
        last = commits(jobs.driver(), 1)
        table.append(b"x")
        table.now().optimize.compact()
        table.now().alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        table.now().create_checkpoint()
        table.now().cleanup_metadata()
        jobs.system().confirm(last)


def test_a_delta_table_that_was_restored_to_a_time_is_noticed(tmp_path: Path) -> None:
    table = DeltaPlace(tmp_path / "table")
    with table.jobs() as jobs:
        driver = jobs.driver()
        first, last = commits(driver, 1), commits(driver, 2)
        for version in range(3):
            os.utime(table.path / "_delta_log" / f"{version:020}.json", (version * 60, version * 60))
        table.now().restore(datetime.fromtimestamp(90, UTC))
        assert table.values() == [b"1"]
        jobs.system().confirm(first)
        with pytest.raises(HaltedError, match="that it has is 1;"):
            jobs.system().confirm(last)


@pytest.mark.slow
def test_a_job_goes_without_the_rows_of_a_table_that_was_created_again_with_a_sink_of_another_name(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, "delta")
    place.add(0)
    assert place.run() == 0
    place.table.replace()
    before = len(place.written)
    place.add(1)
    assert place.run(exits=4) == 4
    assert place.table.values() == []
    assert place.run(sink="second") == 0
    assert place.table.values() == sorted(place.written[before:])


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACES)
def test_a_job_halts_at_a_restored_table_until_it_is_restored_too(tmp_path: Path, kind: str) -> None:
    place = Place(tmp_path, kind)
    place.add(0)
    assert place.run() == 0
    state, first = place.table.state(), sorted(place.written)
    place.add(1)
    assert place.run() == 0
    place.table.restore(state)
    place.add(2)
    assert place.run(exits=4) == 4
    assert place.table.values() == first
    (newest,) = set(re.findall(r"onceward restore lines --from (\d+)", place.said))
    reason = ("--reason", "the table was restored", "--yes")
    done = onceward("restore", "lines", "--from", newest, *reason, "--state-dir", str(place.state))
    assert done.returncode == 0, done.stderr
    for _ in range(2):  # to the ends of the run that was restored, then to those of a new one
        assert place.run() == 0
    assert place.table.values() == sorted(place.written)
