"""An older store is migrated in one transaction, or refused and left as it was."""

import json
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, select

from onceward.coordinator.store import postgres as module
from onceward.coordinator.store.codec import snapshots_from_text
from onceward.coordinator.store.errors import StoreError, StoreUnusableError
from onceward.coordinator.store.schema import SCHEMA_VERSION, checkpoints, checksum, meta, replacing, text_checksum
from onceward.protocol import sharing
from onceward.protocol.encoded import decoded_all
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.values import CheckpointState, Snapshot
from tests.support.newer_programs import newer
from tests.support.places import Place, postgres_place
from tests.support.stored_jobs import JOB, StoredJob

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

NOW = SCHEMA_VERSION


def add_table(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE leaders (epoch BIGINT)")


def add_row(connection: Connection) -> None:
    connection.exec_driver_sql("INSERT INTO leaders VALUES (7)")


def fail(_connection: Connection) -> None:
    raise StoreError("no room")


def written(place: Place) -> StoredJob:
    store = place.open()
    job = StoredJob(store)
    job.open()
    job.checkpoints(2)
    store.close()
    return job


def stored(place: Place, query: str) -> object:
    with place.raw() as raw:
        return raw.exec_driver_sql(query).scalar()


VERSION = "SELECT value FROM onceward_meta WHERE key = 'schema_version'"


def test_an_older_store_is_migrated_step_by_step_and_keeps_everything(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    job = written(place)
    with newer(add_table, add_row):
        for _ in range(2):  # once only
            assert place.loaded() == [job.durable]
    assert stored(place, "SELECT count(*) FROM leaders WHERE epoch = 7") == 1
    assert stored(place, VERSION) == str(NOW + 2)
    assert caplog.text.count(f"event=store_migrated from={NOW} to={NOW + 2}") == 1


def former_text(text: str) -> str:
    """Snapshots as up to schema version 7: bodies as values."""

    def former(snapshot: Snapshot) -> dict[str, Any]:
        shared, bodies = sharing.split([one.document.body for one in decoded_all(snapshot.committables)])
        positions = snapshot.positions
        return {
            "positions": {"kind": positions.kind, "version": positions.version, "body": dict(positions.body)}
            if positions is not None
            else None,
            "shared": shared,
            "committables": [
                [one.slot, {"kind": one.document.kind, "version": one.document.version, "body": body}]
                for one, body in zip(snapshot.committables, bodies, strict=True)
            ],
            "records": snapshot.records,
            "bytes": snapshot.bytes,
            "unchanged": snapshot.unchanged,
        }

    return json.dumps({name: former(one) for name, one in snapshots_from_text(text).items()}, separators=(",", ":"))


def make_older(place: Place) -> None:
    """Bring the store back to schema version 6."""
    row = {"key": "schema_version", "value": "6"}
    with place.raw() as raw:
        for found in raw.execute(select(checkpoints)).mappings().all():
            if found["snapshots"] is None:
                continue
            text = former_text(found["snapshots"])
            changed = {**found, "snapshots": text, "snapshots_checksum": text_checksum(text)}
            changed["checksum"] = checksum(checkpoints, changed)
            raw.execute(replacing(checkpoints).values(**changed))
    place.run(
        "ALTER TABLE checkpoints DROP COLUMN phases",
        f"UPDATE onceward_meta SET value = '6', checksum = '{checksum(meta, row)}' WHERE key = 'schema_version'",
    )


def test_a_migration_beside_a_reader_names_it_and_changes_nothing(
    postgres: "LocalPostgres", monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgres_place(postgres)
    job = written(place)
    make_older(place)
    monkeypatch.setattr(module, "_ALONE_S", 0.1)
    with place.raw() as reader:
        pid = reader.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        reader.exec_driver_sql("SET application_name = 'a dump'")
        reader.exec_driver_sql("SELECT * FROM checkpoints")
        with pytest.raises(StoreUnusableError, match=f'process {pid} "a dump" of role .* since .*Nothing was changed'):
            place.open()
    assert stored(place, VERSION) == "6"
    assert place.loaded() == [job.durable]
    assert stored(place, VERSION) == str(NOW)


def test_a_store_without_phases_is_read_and_written_on(place: Place) -> None:
    """As the program of schema version 6 left it, whose seals do not know of phases."""
    job = written(place)
    make_older(place)
    seals = "SELECT checksum FROM checkpoints WHERE checkpoint = {}"
    assert [stored(place, seals.format(number)) for number in (1, 2)] == ["2f517f35367479bd", "543b43ab5f7b508e"]
    phases: Phases = {Phase.PRODUCE: timedelta(seconds=2)}
    with closing(place.open()) as store:
        again = StoredJob(store, known=job.durable)
        again.trigger()
        again.complete(phases=phases)
        listed = {one.checkpoint: (one.state, one.phases) for one in store.checkpoints(JOB, 9)}
    assert listed == {
        1: (CheckpointState.SETTLED, {}),
        2: (CheckpointState.SETTLED, {}),
        3: (CheckpointState.COMPLETED, phases),
    }
    assert place.loaded() == [again.durable]
    assert stored(place, VERSION) == str(NOW)


def test_a_migration_that_fails_leaves_the_older_store(place: Place) -> None:
    job = written(place)
    with newer(add_table, fail), pytest.raises(StoreError, match="no room"):
        place.open()
    assert stored(place, VERSION) == str(NOW)
    assert place.loaded() == [job.durable]
    place.run("CREATE TABLE leaders (epoch BIGINT)")  # there is none


def test_a_store_without_a_way_to_this_version_is_refused(place: Place) -> None:
    written(place)
    refused = pytest.raises(StoreUnusableError, match=f"schema version {NOW}, this program knows version {NOW + 2}")
    with newer(add_table, first=NOW + 1), refused:
        place.open()


def test_a_store_that_a_newer_program_migrated_is_refused_by_an_older_one(place: Place) -> None:
    written(place)
    with newer(add_table):
        place.open().close()
    with pytest.raises(StoreUnusableError, match=f"schema version {NOW + 1}, this program knows version {NOW}"):
        place.open()
