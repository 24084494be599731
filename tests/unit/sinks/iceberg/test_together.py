"""Several tables of a REST catalogue get a checkpoint by one commit: a reader sees it in all of them or in none."""

import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from onceward import IcebergSink
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Finding, Severity
from onceward.coordinator.service.kinds import part
from onceward.dev.promises.sink_case import Driver, from_json
from onceward.driver.outputs import Held, OpenOutput, Outputs
from onceward.protocol.committing import Part
from onceward.protocol.values import Author, Committable, Document, JobName, Outcome, ParticipantName
from onceward.sinks.iceberg.kind import ICEBERG
from onceward.sinks.iceberg.rest import BoundedRestCatalog
from tests.support.nessie import LocalNessie
from tests.support.rest_catalogue import COMMIT_TABLES, RestCatalogue
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.iceberg.tables import NAME, ObjectTable, Table, sqlite_catalog
from tests.unit.sinks.lake.places import in_processes, once_before, run_python

CHILD = """
import sys
from tests.unit.sinks.iceberg.test_together import commit_in_a_child
commit_in_a_child(*sys.argv[1:])
"""
OTHER = "shop.items"
BOTH = [OTHER, NAME]
"""By name."""
Between: TypeAlias = Callable[[Callable[[], None]], None]


class Tables:
    """Two tables of one catalogue, and the drivers of one job that writes to both."""

    def __init__(self, orders: Table, items: Table, commits: Callable[[], list[list[str]]]) -> None:
        self.orders, self.items = orders, items
        self.commits = commits
        """The tables of each commit to the catalogue, by name."""
        self._job = JobName(f"together-{secrets.token_hex(4)}")
        self._attempts = itertools.count(1)
        self.opened = ExitStack()

    def values(self) -> tuple[list[bytes], list[bytes]]:
        return self.orders.values(), self.items.values()

    def driver(self, generation: int = 1, *, together: bool = True, more: Sequence[str] = ()) -> "BothTables":
        """``more``: the names of other sinks of the first table."""
        sinks = {"orders": self.orders, "items": self.items, **dict.fromkeys(more, self.orders)}
        return BothTables([self._driver(table, name, generation, together) for name, table in sinks.items()])

    def _driver(self, table: Table, name: str, generation: int, together: bool) -> Driver:
        sink = table.sink(name, together=together)
        driver = Driver(table.case(), self._job, generation, sink, self._attempts)
        self.opened.callback(driver.close)
        return driver


class BothTables:
    """The driver of a job that writes to both tables."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self.drivers = drivers
        self._outputs = Outputs(drivers[0].job, [OpenOutput(sink=one.sink, system=one.system) for one in drivers])

    def prepared(self, value: bytes, *, checkpoint: int = 1) -> Held:
        """Write a value to both, and pre-commit it."""
        return {one.name: one.prepared([value], checkpoint=checkpoint) for one in self.drivers}

    def commit(self, held: Held, give_up: Callable[[], bool] = lambda: False) -> list[Outcome]:
        authors = {one.name: one.author for one in self.drivers}
        found = self._outputs.commit(authors.__getitem__, held, give_up=give_up, made={})
        return [one.outcome for each in found.values() for one in each]

    def commits(self, held: Held) -> None:
        assert self.commit(held) == [Outcome.COMMITTED] * len(held)

    def evidence(self, held: Held) -> list[str]:
        return [one.system.outcome(held[one.name][0]).evidence for one in self.drivers]

    def saved(self, held: Held) -> str:
        """What another process gets."""
        return json.dumps(
            [
                [one.document.body, driver.job, driver.name, driver.generation]
                for driver in self.drivers
                for one in held[driver.name]
            ]
        )


def again(held: Held) -> Held:
    """The committables as another process reads them from a store."""
    return {name: from_json(each) for name, each in held.items()}


def commit_in_a_child(places: str, documents: str, dies: str = "") -> None:
    """Commit in another process, which has only the documents; ``dies`` before the request is sent, or after the
    catalogue has made it."""
    configured, opened = (part("iceberg", one, "opened") for one in (ICEBERG.configuration, ICEBERG.system))
    parts = []
    for place, (body, job, sink, newest) in zip(json.loads(places), json.loads(documents), strict=True):
        author = Author(job=JobName(job), participant=ParticipantName(sink), generations=range(1, newest + 1))
        one = Committable(slot=0, document=Document(kind="iceberg-files", version=1, body=body))
        system = opened(configured("table", json.loads(place)))
        parts.append(Part(system=system, author=author, committables=[one]))
    commit = BoundedRestCatalog.commit_tables

    def dying(catalogue: BoundedRestCatalog, requests: Any) -> None:
        if dies == "after":
            commit(catalogue, requests)
        os.kill(os.getpid(), 9)

    if dies:
        BoundedRestCatalog.commit_tables = dying  # type: ignore[assignment,method-assign]
    print(*(one.outcome for each in parts[0].system.commit_together(parts) for one in each))


@pytest.fixture(params=["small", pytest.param("nessie", marks=pytest.mark.crash)])
def tables(request: pytest.FixtureRequest) -> Iterator[Tables]:
    running = request.getfixturevalue(request.param)
    orders: Table
    items: Table
    if isinstance(running, RestCatalogue):
        orders, items = (Table(running.settings, name=name) for name in (NAME, OTHER))
    else:
        settings, store = running.settings, request.getfixturevalue("object_store")
        orders, items = (
            ObjectTable(store, {**settings, "name": secrets.token_hex(4)}, name=name) for name in (NAME, OTHER)
        )
        orders.append()
        items.append()
    found = Tables(orders, items, running.commits)
    with found.opened:
        yield found
    for one in (orders, items):
        one.catalog.drop_table(one.name)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Make what it is given happen once, between the look at the tables and the request."""
    return lambda happens: once_before(monkeypatch, BoundedRestCatalog, "commit_tables", happens)


def test_each_checkpoint_is_in_both_tables_by_one_commit(tables: Tables) -> None:
    driver, before = tables.driver(), len(tables.commits())
    for checkpoint, value in enumerate((b"a", b"b"), start=1):
        driver.commits(driver.prepared(value, checkpoint=checkpoint))
    assert tables.commits()[before:] == [BOTH] * 2
    assert tables.values() == ([b"a", b"b"],) * 2


def test_a_stranger_between_look_and_commit_refuses_both_and_then_both_land(tables: Tables, between: Between) -> None:
    driver, before = tables.driver(), len(tables.commits())
    held = driver.prepared(b"a")
    between(lambda: tables.items.append(b"stranger"))
    driver.commits(held)
    assert tables.commits()[before:] == [[OTHER], BOTH]
    assert tables.values() == ([b"a"], [b"a", b"stranger"])


@pytest.mark.parametrize("dies", ["before", "after"])
def test_after_a_kill_around_the_commit_another_process_proves_both_once(tables: Tables, dies: str) -> None:
    driver, before = tables.driver(), len(tables.commits())
    held = driver.prepared(b"a")
    places = json.dumps([one.place for one in (tables.orders, tables.items)])
    assert run_python(CHILD, places, driver.saved(held), dies).returncode == -9
    assert tables.values() == ([b"a"] if dies == "after" else [],) * 2
    (found,) = in_processes(CHILD, [[places, driver.saved(held)]])
    assert found == "committed committed"
    assert tables.commits()[before:] == [BOTH]
    assert tables.values() == ([b"a"],) * 2


def test_a_request_that_is_held_lands_never_if_another_driver_has_committed(tables: Tables, between: Between) -> None:
    driver, following = tables.driver(), tables.driver(generation=2)
    held = driver.prepared(b"a")

    def successor() -> None:
        following.commits(again(held))
        following.commits(following.prepared(b"b", checkpoint=2))

    between(successor)
    driver.commits(held)
    assert tables.values() == ([b"a", b"b"],) * 2


def test_a_request_that_is_held_lands_never_if_one_table_has_its_fence(tables: Tables, between: Between) -> None:
    """The other table gets its files by the same commit as the fence."""
    driver, other, before = tables.driver(), tables.driver(generation=2), len(tables.commits())
    held = driver.prepared(b"a")
    both = [Outcome.COMMITTED, Outcome.LOST]

    def others() -> None:
        tables.items.remove_unused()
        assert other.commit(again(held)) == both

    between(others)
    assert driver.commit(held) == both
    assert tables.commits()[before:] == [BOTH]
    assert tables.values() == ([b"a"], [])
    (_, items), lost = driver.drivers, {"items": driver.drivers[1].prepared([b"a"])}
    items.commits(lost["items"])
    driver.commits(driver.prepared(b"b", checkpoint=2))
    assert tables.values() == ([b"a", b"b"],) * 2


def test_one_table_in_doubt_holds_the_other_back(tables: Tables) -> None:
    driver = tables.driver()
    held = driver.prepared(b"a")
    tables.items.replace()
    assert driver.commit(held) == [Outcome.IN_DOUBT] * 2
    assert tables.values() == ([], [])


def test_an_answer_that_is_lost_is_looked_into(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, before, commit = tables.driver(), len(tables.commits()), BoundedRestCatalog.commit_tables

    def fails_afterwards(catalogue: BoundedRestCatalog, requests: Any) -> None:
        commit(catalogue, requests)
        raise ConnectionError("no answer")

    monkeypatch.setattr(BoundedRestCatalog, "commit_tables", fails_afterwards)
    driver.commits(driver.prepared(b"a"))
    assert tables.commits()[before:] == [BOTH]
    assert tables.values() == ([b"a"],) * 2


def test_threads_and_processes_that_commit_the_same_checkpoint_commit_it_once(tables: Tables) -> None:
    driver, before = tables.driver(), len(tables.commits())
    held = driver.prepared(b"a")
    places = json.dumps([one.place for one in (tables.orders, tables.items)])
    assert in_processes(CHILD, [[places, driver.saved(held)]] * 2) == ["committed committed"] * 2
    assert tables.commits()[before:] == [BOTH]
    assert tables.values() == ([b"a"],) * 2


def test_a_checkpoint_of_a_release_that_committed_one_by_one_is_committed(tables: Tables) -> None:
    driver, before = tables.driver(together=False), len(tables.commits())
    held = driver.prepared(b"a")
    assert all("together" not in one.document.body for each in held.values() for one in each)
    tables.driver(generation=2).commits(again(held))
    assert sorted(tables.commits()[before:]) == [[OTHER], [NAME]]
    assert tables.values() == ([b"a"],) * 2


def test_two_sinks_on_one_table_are_committed_with_one_on_another(tables: Tables, between: Between) -> None:
    before = len(tables.commits())
    driver = tables.driver(more=["again"])
    held = driver.prepared(b"a")
    between(lambda: tables.orders.append(b"stranger"))
    driver.commits(held)
    assert tables.commits()[before:] == [[NAME], BOTH]
    assert tables.values() == ([b"a", b"a", b"stranger"], [b"a"])


@pytest.mark.crash
@pytest.mark.parametrize("tables", ["nessie"], indirect=True)
def test_nessie_does_not_say_that_it_commits_several_tables(tables: Tables) -> None:
    (one,) = found(tables.orders)
    assert (one.severity, "does not say what it can" in one.message) == (Severity.WARNING, True)


@pytest.mark.crash
def test_a_request_that_nessie_makes_after_its_answer_is_given_up_is_made_once(
    nessie: LocalNessie, request: pytest.FixtureRequest, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late landing at the catalogue: the request is on its way, the driver does not wait any longer."""
    store = request.getfixturevalue("object_store")
    orders, items = (
        ObjectTable(store, {**nessie.settings, "name": secrets.token_hex(4)}, name=f"shop.late{n}") for n in range(2)
    )
    for one in (orders, items):
        one.append()
    tables = Tables(orders, items, nessie.commits)
    with tables.opened:
        driver, following = tables.driver(), tables.driver(generation=2)
        held = driver.prepared(b"a")
        between(nessie.pause)
        monkeypatch.setattr("onceward.sinks.iceberg.rest.LIMIT_S", 2.0)
        sent = threading.Thread(target=lambda: driver.commit(held, lambda: True))
        sent.start()
        sent.join(60)
        monkeypatch.setattr("onceward.sinks.iceberg.rest.LIMIT_S", 60.0)
        nessie.resume()
        following.commits(again(held))
        following.commits(following.prepared(b"b", checkpoint=2))
        driver.commits(held)
        assert tables.values() == ([b"a", b"b"],) * 2


# -- catalogues that promise less


def test_what_a_catalogue_commits_one_by_one_is_proved_table_by_table(small: RestCatalogue, between: Between) -> None:
    """Its first table has the checkpoint when the second refuses it: that one alone is sent again."""
    small.at_once = False
    tables = Tables(Table(small.settings), Table(small.settings, name=OTHER), small.commits)
    with tables.opened:
        driver = tables.driver()
        between(lambda: tables.items.append(b"stranger"))
        driver.commits(driver.prepared(b"a"))
        assert tables.values() == ([b"a"], [b"a", b"stranger"])
        assert small.commits()[-1] == [OTHER]


def found(table: Table) -> list[Finding]:
    return [*table.sink(together=True).connect(CONTEXT).preflight()]


def test_a_catalogue_that_does_not_commit_several_tables_is_refused(small: RestCatalogue) -> None:
    table = Table(small.settings)
    assert found(table) == []
    small.endpoints = [one for one in small.endpoints if one != COMMIT_TABLES]
    (one,) = found(table)
    assert one.severity is Severity.ERROR
    assert COMMIT_TABLES in one.message
    small.endpoints = ()
    (one,) = found(table)
    assert one.severity is Severity.WARNING
    assert "does not say what it can" in one.message
    assert [*table.sink().connect(CONTEXT).preflight()] == [], "a table that is committed alone needs no such promise"


def test_a_sql_catalogue_is_refused(tmp_path: Path) -> None:
    (one,) = found(Table(sqlite_catalog(tmp_path)))
    assert one.severity is Severity.ERROR
    assert "no REST catalogue" in one.message


def test_an_argument_that_is_no_switch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="together: 'yes' is neither True nor False"):
        IcebergSink(NAME, catalog=sqlite_catalog(tmp_path), together="yes")  # type: ignore[arg-type]
