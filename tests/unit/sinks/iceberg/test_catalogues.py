"""The Iceberg sink with a catalogue in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.dev.postgres.server import LocalPostgres
from onceward.dev.promises.sink_case import from_json
from onceward.protocol.values import Outcome
from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.conftest import unique_name
from tests.support.database import Database, database_on
from tests.unit.sinks.iceberg.tables import Table
from tests.unit.sinks.lake.places import in_processes
from tests.unit.sinks.lake.test_committing import CHILD, committed, saved


@pytest.fixture
def database(postgres: LocalPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    with database_on(postgres, unique_name(request)) as made:
        yield made


@pytest.fixture
def table(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    scheme, _, rest = database.dsn.partition("://")
    monkeypatch.setenv("ONCEWARD_TEST_CATALOG", f"{scheme}+psycopg://{rest}")
    table = Table({"type": "sql", "uri": "env:ONCEWARD_TEST_CATALOG", "warehouse": f"file://{tmp_path}/warehouse"})
    yield table
    table.location.forget()


@pytest.mark.slow  # the catalogue is the library's; what differs from SQLite is below
@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_iceberg_sink_keeps_with_a_catalogue_in_postgresql(promise: Promise[SinkCase], table: Table) -> None:
    promise(table.case())


def test_processes_that_commit_the_same_checkpoint_in_postgresql_commit_it_once(table: Table) -> None:
    with table.jobs() as jobs:
        driver, following = jobs.driver(), jobs.driver(generation=2)
        made = driver.prepared([b"a"], [b"b"])
        assert in_processes(CHILD, [["iceberg", table.place, saved(made, driver.author)]] * 2) == ["committed"] * 2
        following.commits(from_json(made))
        following.commits(following.prepared([b"c"], checkpoint=2))
    assert table.values() == [b"a", b"b", b"c"]


def test_a_catalogue_whose_connections_broke_is_asked_again(table: Table, database: Database) -> None:
    with table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        database.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert committed(driver, made).outcome is Outcome.COMMITTED
    assert table.values() == [b"a"]


def test_a_catalogue_that_is_away_is_no_empty_one(table: Table, database: Database) -> None:
    with table.jobs() as jobs:
        driver, system = jobs.driver(), table.system()
        made = driver.prepared([b"a"])
        database.run("ALTER TABLE iceberg_tables RENAME TO away")
        assert system.commit(driver.author, made, give_up=lambda: True) == []
        found = system.outcome(made[0])
        assert found.outcome is Outcome.IN_DOUBT
        assert "SELECT" not in found.evidence
        database.run("DROP TABLE IF EXISTS iceberg_tables", "ALTER TABLE away RENAME TO iceberg_tables")
        driver.commits(made)
    assert table.values() == [b"a"]
