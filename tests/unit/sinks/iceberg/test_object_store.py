"""Iceberg tables in an object store: the same promises, and no secret where it can be read."""

import json
import pickle
import secrets
from pathlib import Path

import pytest

from onceward.common.errors import PreflightError
from onceward.protocol.values import Outcome
from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.support.object_store import ObjectStore
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.iceberg.tables import SECRET, ObjectTable, sqlite_catalog
from tests.unit.sinks.lake.places import in_processes
from tests.unit.sinks.lake.test_committing import CHILD, committed, saved


@pytest.fixture
def table(object_store: ObjectStore, tmp_path: Path) -> ObjectTable:
    warehouse = f"s3://{object_store.bucket}/iceberg/{secrets.token_hex(4)}"
    return ObjectTable(object_store, {**sqlite_catalog(tmp_path), "warehouse": warehouse})


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_iceberg_sink_keeps_in_an_object_store(promise: Promise[SinkCase], table: ObjectTable) -> None:
    promise(table.case())


def test_processes_that_commit_the_same_checkpoint_in_an_object_store_commit_it_once(table: ObjectTable) -> None:
    with table.jobs() as jobs:
        driver = jobs.driver()
        document = saved(driver.prepared([b"a"], [b"b"]), driver.author)
    assert in_processes(CHILD, [["iceberg", table.place, document]] * 2) == ["committed"] * 2
    assert table.values() == [b"a", b"b"]


def test_files_that_are_gone_from_an_object_store_are_lost_and_the_loss_is_proved(table: ObjectTable) -> None:
    with table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        table.remove_unused()
        for _ in range(2):
            assert committed(driver, made).outcome is Outcome.LOST
    assert table.values() == []


def test_a_storage_that_is_away_is_unknown_until_it_is_back(table: ObjectTable) -> None:
    with table.jobs() as jobs:
        driver, system = jobs.driver(), table.system()
        made = driver.prepared([b"a"])
        table.store.stop()
        try:
            assert system.commit(driver.author, made, give_up=lambda: True) == []
            assert system.outcome(made[0]).outcome is Outcome.IN_DOUBT
        finally:
            table.store.start()
        driver.commits(made)
    assert table.values() == [b"a"]


def test_no_secret_is_in_what_is_sent_stored_or_shown(table: ObjectTable, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = table.store.secret_key
    with table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        driver.commits(made)
        session = table.sink().connect(CONTEXT)
        shown = [
            repr(vars(table.sink())), repr(vars(session)), repr(pickle.dumps(session.write())),
            json.dumps(made[0].document.body), repr(vars(driver.system)), driver.system.describe(made[0]),
        ]  # fmt: skip
    shown += [
        repr(table.store.client.get_object(Bucket=table.store.bucket, Key=key)["Body"].read())
        for key in table.store.keys(table.folder)
    ]
    assert [one for one in shown if secret in one] == []
    monkeypatch.delenv(SECRET.removeprefix("env:"))
    table.location.forget()
    with pytest.raises(PreflightError, match=r"catalog s3\.secret-access-key refers to the environment variable"):
        table.sink().connect(CONTEXT)
