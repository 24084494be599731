"""All jobs are read with few statements, and nothing that takes long is done inside a transaction."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection

from onceward.coordinator.store import loading, postgres, reading
from onceward.coordinator.store.codec import snapshots_from_text
from onceward.coordinator.store.opening import open_candidate, open_database
from onceward.coordinator.store.postgres import PAUSE_S
from onceward.coordinator.store.statements import Row, Statement
from onceward.coordinator.store.store import Store
from onceward.protocol.durable import Durable
from onceward.protocol.values import CheckpointId, JobName
from tests.support.manual_time import ManualTime
from tests.support.many_jobs import write_jobs
from tests.support.places import Place, postgres_place
from tests.support.slow_link import slow_link
from tests.support.stored_jobs import StoredJob

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Statement]]:
    """Yield a list of the statements that read meanwhile."""
    run: list[Statement] = []
    fetch = Statement._fetch

    def fetching(self: Statement, connection: Connection, parameters: Row) -> Any:
        run.append(self)
        return fetch(self, connection, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(Statement, "_fetch", fetching)
        yield run


def restored_and_others(store: Store, numbers: range) -> list[Durable]:
    """Suspended jobs, and as many with an order of a person to restore an older checkpoint."""
    jobs = write_jobs(store, numbers)
    for number in numbers:
        job = StoredJob(store, JobName(f"restored-{number:05}"))
        job.open()
        job.checkpoints(2)
        job.order_restore(1)
        jobs.append(job.durable)
    return jobs


def test_many_jobs_take_no_more_statements_than_a_few(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    few = restored_and_others(store, range(2))
    with counted(monkeypatch) as begun:
        assert store.load_jobs() == few
    more = restored_and_others(store, range(2, 40))
    with counted(monkeypatch) as later:
        assert store.load_jobs() == sorted(few + more, key=lambda durable: durable.job)
    assert len(later) == len(begun) == 4


def test_one_statement_reads_a_bounded_number_of_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = restored_and_others(store, range(5))
    counts = []
    for most in (1, 5_000, 1_000_000):
        monkeypatch.setattr(loading, "_PAGE_BYTES", most)
        with counted(monkeypatch) as begun:
            assert store.load_jobs() == jobs
        counts.append(len(begun) - 3)
    assert (counts[0], counts[2]) == (len(jobs), 1)
    assert 1 < counts[1] < len(jobs), "small ones share a statement"


def test_what_is_read_is_decoded_outside_of_a_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database ends a transaction in which its client is silent, as one is that decodes a large row."""
    jobs = restored_and_others(store, range(2))
    within = []

    def decoding(text: str) -> Any:
        within.append(store._database.connection.in_transaction())
        return snapshots_from_text(text)

    monkeypatch.setattr(f"{reading.__name__}.{snapshots_from_text.__name__}", decoding)
    assert store.load_jobs() == jobs
    assert within == [False] * 6


def test_a_leader_that_decodes_for_long_says_between_two_jobs_that_it_is_there(
    postgres: "LocalPostgres", monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualTime()
    database = open_database(postgres_place(postgres).url)
    database.limit_silence()
    with closing(Store(database, clock=clock.monotonic)) as store:
        jobs = write_jobs(store, range(9))
        silences = []

        def decoding(text: str) -> Any:
            clock.now += PAUSE_S / 8
            silences.append(PAUSE_S - store.leads_for)
            return snapshots_from_text(text)

        monkeypatch.setattr(f"{reading.__name__}.{snapshots_from_text.__name__}", decoding)
        assert store.load_jobs() == jobs
        assert max(silences) <= PAUSE_S / 2


def test_a_hundred_jobs_get_a_leader_whose_database_is_a_tenth_of_a_second_away(
    postgres: "LocalPostgres", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement for each job took longer than the database allows a transaction of a leader."""
    with ExitStack() as stack:
        place = postgres_place(postgres)
        with closing(place.open()) as store:
            jobs = write_jobs(store, range(150))
        port = stack.enter_context(slow_link(postgres.port, 0.1))
        candidate = stack.enter_context(closing(open_candidate(place.url.replace(f":{postgres.port}", f":{port}"))))
        database = candidate.wait(60.0)
        assert database is not None
        with closing(Store.lead(database, address="a:1")) as store, counted(monkeypatch) as begun:
            assert store.load_jobs() == jobs
            assert len(begun) == 4, "one for each job takes longer than clients wait, whatever the database allows"
            store.limit_silence()
            store.confirm()


def test_the_limits_of_a_leader_hold_when_the_jobs_are_read(place: Place) -> None:
    if not place.is_postgres:
        pytest.skip("a file has no limits")

    def found(store: Store) -> dict[str, str]:
        with store._database.connection.begin():
            settings = store._database.connection.exec_driver_sql("SELECT name, setting FROM pg_settings").all()
        return {name: setting for name, setting in settings if name in postgres._LEADING}

    with closing(open_candidate(place.url)) as candidate:
        database = candidate.wait(60.0)
    assert database is not None
    with closing(Store.lead(database, address="a:1")) as store:
        store.load_jobs()
        assert found(store) == postgres._OPENING
        store.limit_silence()
        assert found(store) == postgres._LEADING


def test_only_the_newest_checkpoints_of_a_damaged_job_are_looked_through(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a round trip, and a job may have kept ten thousand."""
    monkeypatch.setattr(loading, "_NAMED", 2)
    job = StoredJob(store)
    job.open()
    job.checkpoints(4)
    store.close()
    place.change("UPDATE checkpoints SET base = 2 WHERE checkpoint = 4")
    with closing(place.open()) as store:
        (durable,) = store.load_jobs()
        assert durable.unreadable.endswith("Completed and readable among the newest 2 are: 3")
        assert store.completed(job.durable.job, CheckpointId(1)).id == 1
