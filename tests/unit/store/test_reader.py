"""Listings beside the connection that writes: they see what is committed, change nothing, and cost no lead."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from onceward.coordinator.store.errors import LeadLostError, ListingFailedError
from onceward.coordinator.store.reader import Reader
from onceward.coordinator.store.store import Store
from onceward.coordinator.store.term import begin_term
from onceward.protocol.values import CheckpointId
from tests.support.places import Place, postgres_place
from tests.support.stored_jobs import JOB, StoredJob

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres


@pytest.fixture
def place(postgres: "LocalPostgres") -> Place:
    return postgres_place(postgres)


@pytest.fixture
def reader(store: Store) -> Iterator[Reader]:
    reader = store.reader()
    assert reader is not None
    with closing(reader):
        yield reader


def test_it_lists_what_the_store_lists(store: Store, reader: Reader) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(3)
    job.trigger()
    assert reader.last_completed_by_job() == store.last_completed_by_job()
    assert reader.checkpoints(JOB, 10) == store.checkpoints(JOB, 10)
    assert reader.history(JOB, 10) == store.history(JOB, 10)
    assert reader.checkpoint(JOB, CheckpointId(2)) == store.checkpoint(JOB, CheckpointId(2))


def test_it_sees_nothing_of_a_write_under_way_and_does_not_wait_for_it(store: Store, reader: Reader) -> None:
    StoredJob(store).open()
    with store._writing("deciding") as connection:
        connection.exec_driver_sql("UPDATE generations SET detail = 'later'")
        assert [one.detail for one in reader.generations(JOB, 1)] == [""]


def test_the_statements_of_a_listing_see_the_same_state(store: Store, reader: Reader) -> None:
    """Otherwise a checkpoint that is decided between two of them looks damaged."""
    job = StoredJob(store)
    job.open()
    with reader._reading("listing") as connection:
        before = connection.exec_driver_sql("SELECT count(*) FROM checkpoints").scalar_one()
        job.checkpoints(3)
        assert connection.exec_driver_sql("SELECT count(*) FROM checkpoints").scalar_one() == before
    assert len(reader.checkpoints(JOB, 10)) == 3


def test_it_can_write_nothing(store: Store, reader: Reader) -> None:
    StoredJob(store).open()
    with pytest.raises(ListingFailedError) as refused, reader._reading("listing") as connection:
        connection.exec_driver_sql("DELETE FROM jobs")
    assert "read-only transaction" in str(refused.value.__cause__)
    assert len(store.load_jobs()) == 1


def test_it_lists_nothing_of_another_term(store: Store, reader: Reader, place: Place) -> None:
    """Another server may answer at the database's address: an older copy, or one that others lead on."""
    StoredJob(store).open()
    reader.generations(JOB, 1)
    with place.raw() as raw:
        begin_term(raw, "b:2")
    with pytest.raises(ListingFailedError) as refused:
        reader.generations(JOB, 1)
    assert isinstance(refused.value.__cause__, LeadLostError)


def test_a_store_in_a_file_has_one_connection(sqlite: Store) -> None:
    assert sqlite.reader() is None
