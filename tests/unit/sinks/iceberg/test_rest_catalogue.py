"""The Iceberg sink with a REST catalogue, Nessie. Run by hand: it fetches 245 MB and starts a server."""

import secrets
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from onceward.dev.promises.sink_case import Jobs, from_json
from onceward.protocol.values import Outcome
from onceward.sinks.iceberg.rest import BoundedRestCatalog
from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.support.nessie import LocalNessie
from tests.support.object_store import ObjectStore
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.iceberg.tables import NAME, VALUES, ObjectTable
from tests.unit.sinks.lake.places import in_processes, once_before
from tests.unit.sinks.lake.test_committing import CHILD, committed, saved

pytestmark = pytest.mark.crash


@pytest.fixture
def table(nessie: LocalNessie, object_store: ObjectStore) -> Iterator[ObjectTable]:
    table = ObjectTable(object_store, {**nessie.settings, "name": secrets.token_hex(4)})
    table.append()
    yield table
    table.catalog.drop_table(NAME)


@pytest.fixture
def jobs(table: ObjectTable) -> Iterator[Jobs]:
    with table.jobs() as opened:
        yield opened


def in_the_catalogue(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Make something happen once before a commit is sent: all that it asserts is settled then."""
    once_before(monkeypatch, BoundedRestCatalog, "commit_table", happens)


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_iceberg_sink_keeps_with_a_rest_catalogue(promise: Promise[SinkCase], table: ObjectTable) -> None:
    promise(table.case())


def test_a_commit_to_a_rest_catalogue_that_is_held_lands_never_if_another_driver_has_committed(
    table: ObjectTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, following = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"], checkpoint=1)

    def successor() -> None:
        following.commits(from_json(made))
        following.commits(following.prepared([b"b"], checkpoint=2))

    in_the_catalogue(monkeypatch, successor)
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a", b"b"]


def test_a_stranger_and_a_fence_refuse_a_held_commit_to_a_rest_catalogue(
    table: ObjectTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, other = jobs.driver(), jobs.driver(generation=2)
    in_the_catalogue(monkeypatch, lambda: table.append(b"stranger"))
    driver.commits(driver.prepared([b"a"], checkpoint=1))
    assert table.values() == [b"a", b"stranger"]
    made = driver.prepared([b"lost"], checkpoint=2)

    def others() -> None:
        table.remove_unused()
        assert committed(other, made).outcome is Outcome.LOST

    in_the_catalogue(monkeypatch, others)
    assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == [b"a", b"stranger"]


def test_a_first_snapshot_that_nessie_would_replace_is_refused(nessie: LocalNessie, object_store: ObjectStore) -> None:
    table = ObjectTable(object_store, {**nessie.settings, "name": secrets.token_hex(4)})
    try:
        stale = table.now()
        table.append(b"a")
        stale.append(pa.table({"value": pa.array([b"b"], pa.binary())}))
        assert table.values() == [b"b"], "as of Nessie 0.99"
        table.catalog.drop_table(NAME)
        table.catalog.create_table(NAME, VALUES)
        (found,) = table.sink().connect(CONTEXT).preflight()
        assert "Nessie does not compare the first one" in found.message
        now = table.now()
        now.append(now.schema().as_arrow().empty_table())
        assert table.sink().connect(CONTEXT).preflight() == []
    finally:
        table.catalog.drop_table(NAME)


def test_processes_that_commit_the_same_checkpoint_to_a_rest_catalogue_commit_it_once(
    table: ObjectTable, jobs: Jobs
) -> None:
    driver = jobs.driver()
    document = saved(driver.prepared([b"a"], [b"b"]), driver.author)
    assert in_processes(CHILD, [["iceberg", table.place, document]] * 2) == ["committed"] * 2
    assert table.values() == [b"a", b"b"]


def test_a_rest_catalogue_that_stands_still_is_unknown_until_it_answers_again(
    nessie: LocalNessie, table: ObjectTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.sinks.iceberg.rest.LIMIT_S", 2.0)
    driver, system = jobs.driver(), table.system()
    made = driver.prepared([b"a"])
    with nessie.paused():
        assert system.commit(driver.author, made, give_up=lambda: True) == []
        assert system.outcome(made[0]).outcome is Outcome.IN_DOUBT
    monkeypatch.undo()
    assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


def test_a_commit_that_a_rest_catalogue_makes_after_its_answer_is_given_up_is_made_once(
    nessie: LocalNessie, table: ObjectTable, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late landing at the catalogue: the request is on its way, the driver does not wait any longer."""
    driver, following = jobs.driver(), jobs.driver(generation=2)
    made = driver.prepared([b"a"])
    in_the_catalogue(monkeypatch, nessie.pause)
    monkeypatch.setattr("onceward.sinks.iceberg.rest.LIMIT_S", 2.0)
    sent = threading.Thread(target=lambda: driver.system.commit(driver.author, made, give_up=lambda: True))
    sent.start()
    sent.join(60)
    monkeypatch.setattr("onceward.sinks.iceberg.rest.LIMIT_S", 60.0)
    nessie.resume()
    following.commits(from_json(made))
    following.commits(following.prepared([b"b"], checkpoint=2))
    assert committed(driver, made).outcome is not Outcome.LOST
    assert table.values() == [b"a", b"b"]
