"""Terms: one coordinator writes at a time, and a late one writes nothing."""

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import text

from onceward.coordinator.store.database import Candidate
from onceward.coordinator.store.errors import LeadLostError, StoreDamagedError, StoreError
from onceward.coordinator.store.opening import open_candidate, open_database
from onceward.coordinator.store.postgres import PAUSE_S, _timeline
from onceward.coordinator.store.store import Store, with_suspension
from onceward.coordinator.store.term import begin_term
from onceward.wire.rows import Leader
from tests.support.manual_time import ManualTime
from tests.support.places import Place, postgres_place
from tests.support.stored_jobs import JOB, StoredJob
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres


def begin_another(place: Place) -> None:
    with place.raw() as raw:
        begin_term(raw, "b:2")


def led_by(candidate: Candidate) -> str | None:
    leader = candidate.leader()
    return None if leader is None else leader.address


@pytest.fixture
def shared(postgres: "LocalPostgres") -> Place:
    return postgres_place(postgres)


def test_each_opening_begins_the_next_term(place: Place) -> None:
    for number in (1, 2, 3):
        with closing(place.open()) as store:
            assert (store.term.number, store.term.address) == (number, "")


@pytest.mark.parametrize(
    "write",
    [
        lambda store, _job: store.prune([(JOB, 1)]),
        lambda store, _job: store.confirm(),
        lambda _store, job: job.checkpoints(1),
    ],
    ids=["a removal", "a confirmation", "a decision"],
)
def test_nothing_is_written_after_another_term_has_begun(shared: Place, write: Callable[..., Any]) -> None:
    """The lock makes this impossible; this is what happens if it fails, for example after a hasty promotion."""
    with closing(shared.open()) as store:
        job = StoredJob(store)
        job.open()
        before = shared_rows(shared)
        begin_another(shared)
        with pytest.raises(
            LeadLostError, match=r"in term 2 of b:2: this coordinator's term 1 is over\. Nothing of its last write"
        ):
            write(store, job)
        with pytest.raises(LeadLostError):
            store.load_jobs()
    assert shared_rows(shared) == before


@pytest.mark.parametrize(
    "write", [lambda store: store.prune([(JOB, 1)]), Store.confirm], ids=["a removal", "a confirmation"]
)
def test_a_term_of_the_same_number_is_another_term_if_another_coordinator_holds_it(
    shared: Place, write: Callable[[Store], object]
) -> None:
    """An older copy of the database was put back, and another coordinator leads there: its term has the same number."""
    shared.open().close()
    with shared.raw() as raw:
        copy = raw.exec_driver_sql("SELECT value, checksum FROM onceward_meta WHERE key = 'term'").one()
    with closing(shared.open()) as store:
        assert store.term.number == 2
        with shared.raw() as raw:
            back = text("UPDATE onceward_meta SET value = :value, checksum = :checksum WHERE key = 'term'")
            raw.execute(back, copy._asdict())
            other = begin_term(raw, store.term.address)
        assert (other.number, other.address) == (store.term.number, store.term.address)
        with pytest.raises(LeadLostError, match="this coordinator's term 2 is over"):
            write(store)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """For PostgreSQL, which runs as another user than root."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.slow
def test_the_terms_of_a_promoted_copy_are_above_those_that_it_does_not_know(open_directory: Path) -> None:
    from onceward.dev.postgres.binaries import is_offered
    from onceward.dev.postgres.server import LocalPostgres

    if not is_offered():
        pytest.skip("there is no PostgreSQL to fetch for this machine")
    lost, copied = open_directory / "lost", open_directory / "copied"
    with LocalPostgres(lost) as server:
        Store.open(server.url).close()
        server.kill()
        subprocess.run(["cp", "-a", str(lost), str(copied)], check=True)
        server.restart()
        for number in (2, 3):
            with closing(Store.open(server.url)) as store:
                assert store.term.number == number
    (copied / "data" / "recovery.signal").touch()  # to the end of its log, and then a timeline of its own
    with LocalPostgres(copied, settings={"restore_command": "false", "hot_standby": "off"}) as server:
        numbers = []
        for _ in range(2):
            with closing(Store.open(server.url)) as store:
                numbers.append(store.term.number)
        with psycopg.connect(server.url) as session:
            session.execute("CREATE ROLE driven")
            session.execute("SET ROLE driven")
            assert _timeline(session) == 2, "any role may ask"
    assert numbers == [1_000_001, 1_000_002]


def test_a_database_that_does_not_say_its_timeline_counts_on(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.coordinator.store.postgres._TIMELINE", "SELECT nothing()")
    for number in (1, 2):
        with closing(shared.open()) as store:
            assert store.term.number == number


def shared_rows(place: Place) -> list[Any]:
    with place.raw() as raw:
        tables = ("jobs", "checkpoints", "generations", "history")
        return [raw.exec_driver_sql(f"SELECT * FROM {table} ORDER BY 1, 2").all() for table in tables]


def test_a_new_term_waits_for_the_write_of_the_old_one(shared: Place) -> None:
    with closing(shared.open()) as store:
        with store._write_transaction():
            next_term = threading.Thread(target=begin_another, args=(shared,))
            next_term.start()
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FOR UPDATE'"

            def waits() -> bool:
                with shared.raw() as raw:  # a transaction sees the sessions as they were at its first look
                    return raw.exec_driver_sql(waiting).first() is not None

            wait_until(waits, "the new term waits")
            assert next_term.is_alive()
        next_term.join()
        with pytest.raises(LeadLostError):
            store.confirm()


def test_a_damaged_term_is_not_followed_by_a_guess(place: Place) -> None:
    place.open().close()
    place.change("UPDATE onceward_meta SET value = '{\"number\": 0}' WHERE key = 'term'")
    with pytest.raises(StoreDamagedError, match="record term is not what was written"):
        place.open()


def test_a_leader_trusts_its_lead_from_its_last_contact_on(shared: Place) -> None:
    clock = ManualTime()
    database = open_database(shared.url)
    database.limit_silence()
    with closing(Store(database, clock=clock.monotonic)) as store:
        assert store.can_move
        assert store.leads_for == PAUSE_S
        clock.now += PAUSE_S / 2
        assert store.confirm_in <= 0 < store.leads_for
        store.confirm()
        assert store.leads_for == PAUSE_S
        clock.now += PAUSE_S
        assert store.leads_for <= 0


def test_the_lead_is_measured_on_a_clock_that_counts_suspension_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = {time.CLOCK_MONOTONIC: 5.0, 77: 3605.0}
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 77, raising=False)
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: clocks[time.CLOCK_MONOTONIC])
    assert with_suspension() == 3605.0
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert with_suspension() == 5.0


def test_a_silent_leader_loses_the_lead_and_the_next_one_gets_it(shared: Place) -> None:
    with closing(open_candidate(shared.url)) as candidate, closing(open_candidate(shared.url)) as other:
        first = candidate.wait(60.0)
        assert first is not None
        store = Store.lead(first, address="a:1")
        store.limit_silence()
        assert (other.wait(0.05), led_by(other)) == (None, "a:1")
        second = other.wait(60.0)  # the server ends the silent session
        assert second is not None
        with closing(Store.lead(second, address="b:2")) as successor:
            assert (successor.term.number, successor.store_id) == (2, store.store_id)
            with pytest.raises(Exception, match="nothing is built on it"):
                store.confirm()
        store.close()


def test_a_leader_that_stands_still_inside_a_write_loses_the_lead_and_its_write(shared: Place) -> None:
    """Its transaction holds the record of the term, so that no other term could begin before the server ends it."""
    with closing(open_candidate(shared.url)) as candidate, closing(open_candidate(shared.url)) as other:
        first = candidate.wait(60.0)
        assert first is not None
        store = Store.lead(first, address="a:1")
        store.limit_silence()

        def write_and_stand_still() -> None:
            with store._writing("deciding") as connection:
                connection.exec_driver_sql("UPDATE onceward_meta SET value = 'lost' WHERE key = 'leader'")
                second = other.wait(60.0)
                assert second is not None, "the other one waits for as long as the leader stands still"
                with closing(Store.lead(second, address="b:2")) as successor:
                    assert successor.term.number == 2

        with pytest.raises(StoreError, match="idle-in-transaction"):
            write_and_stand_still()
        with pytest.raises(StoreError):
            store.confirm()
        store.close()
    with closing(open_candidate(shared.url)) as third:
        assert led_by(third) == "b:2"


def test_one_that_stands_by_knows_who_leads_since_when_and_where_its_page_is(shared: Place) -> None:
    with closing(open_candidate(shared.url)) as candidate, closing(open_candidate(shared.url)) as other:
        assert other.leader() is None, "none ever led"
        database = candidate.wait(60.0)
        assert database is not None
        before = datetime.now(UTC)
        with closing(Store.lead(database, address="a:1", web="https://a:2/")) as store:
            found = other.leader()
            assert found is not None
            assert found.since is not None
            assert store.leader.since is not None
            assert abs(found.since - store.leader.since) < timedelta(milliseconds=1)
            assert found.since > before - timedelta(milliseconds=1)
            assert replace(found, since=None) == Leader(address="a:1", term=1, since=None, web="https://a:2/")


def test_what_an_earlier_leader_said_of_itself_is_not_taken_for_the_words_of_an_older_version(shared: Place) -> None:
    with closing(open_candidate(shared.url)) as candidate:
        with closing(open_candidate(shared.url)) as first:
            database = first.wait(60.0)
            assert database is not None
            Store.lead(database, address="a:1", web="http://a:2/").close()
        with shared.raw() as raw:  # as a version does that knows no record but its own
            about = raw.exec_driver_sql("SELECT value, checksum FROM onceward_meta WHERE key = 'leader'").one()
            term = begin_term(raw, "b:2")
            kept = text("UPDATE onceward_meta SET value = :value, checksum = :sum WHERE key = 'leader'")
            raw.execute(kept, {"value": about[0], "sum": about[1]})
        assert candidate.leader() == Leader(address="b:2", term=term.number, since=None, web="")
        with shared.raw() as raw:
            raw.exec_driver_sql("DELETE FROM onceward_meta WHERE key = 'leader'")
        assert candidate.leader() == Leader(address="b:2", term=term.number, since=None, web="")


def test_the_leader_knows_who_waits_for_the_lead_of_its_schema(shared: Place, postgres: "LocalPostgres") -> None:
    with closing(shared.open()) as store, ExitStack() as stack:
        assert store.standbys() == ()
        for place in (shared, shared, postgres_place(postgres)):  # the last one waits elsewhere
            candidate = stack.enter_context(closing(open_candidate(place.url)))
            with closing(place.open()) if place is not shared else nullcontext():
                assert candidate.wait(0.01) is candidate.wait(0.01) is None
        found = store.standbys()
        assert found is not None
        assert len(found) == 2
        assert all(one.name.endswith(f":{os.getpid()}") and one.since is not None for one in found)
        stack.close()
        wait_until(lambda: store.standbys() == (), "they wait no more")


def test_a_database_that_does_not_say_who_waits_costs_no_lead(shared: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.coordinator.store.postgres._STANDBYS", "SELECT nothing FROM nowhere")
    with closing(shared.open()) as store:
        assert store.standbys() is None
        store.confirm()
        assert store.load_jobs() == []


def test_a_store_in_a_file_has_no_standbys(tmp_path: Any) -> None:
    with closing(Store.open(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        assert (store.standbys(), store.kind.shared) == ((), False)


def test_a_process_that_stands_still_with_the_lock_before_it_leads_loses_it(shared: Place) -> None:
    with closing(open_candidate(shared.url)) as candidate, closing(open_candidate(shared.url)) as other:
        silent = candidate.wait(60.0)
        assert silent is not None
        found = other.wait(60.0)
        assert found is not None
        with closing(Store.lead(found, address="b:2")) as store:
            assert store.term.number == 1
            with pytest.raises(StoreError):
                Store.lead(silent, address="a:1")
            store.confirm()


def test_a_store_in_a_file_cannot_move(tmp_path: Any) -> None:
    with closing(Store.open(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        assert not store.can_move
        assert store.leads_for == store.confirm_in == float("inf")
