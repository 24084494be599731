"""On PostgreSQL: the one session that holds the lock is never replaced, and a server that cannot be trusted is
refused."""

import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError

from onceward.common.errors import ExitCode
from onceward.coordinator.store import opening
from onceward.coordinator.store import postgres as module
from onceward.coordinator.store.errors import StoreError, StoreUnusableError
from onceward.coordinator.store.opening import open_database
from onceward.coordinator.store.postgres import PostgresCandidate, PostgresDatabase
from onceward.coordinator.store.schema import SCHEMA_VERSION, jobs
from onceward.coordinator.store.store import Store
from onceward.protocol.values import CheckpointKind
from onceward.wire.limits import MAX_LABEL, MAX_TOKEN
from tests.support.newer_programs import newer
from tests.support.places import Place, postgres_place
from tests.support.stored_jobs import JOB, StoredJob, ids

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres


@pytest.fixture
def place(postgres: "LocalPostgres") -> Place:
    return postgres_place(postgres)


def cut(store: Store, place: Place) -> None:
    """End the store's session, as the server does when it restarts."""
    database = store._database
    assert isinstance(database, PostgresDatabase)
    with place.raw() as raw:
        assert raw.exec_driver_sql(f"SELECT pg_terminate_backend({database._session.info.backend_pid})").scalar()


@pytest.mark.parametrize(
    "call",
    [
        lambda store, _job: store.prune([(JOB, 1)]),
        lambda store, _job: store.load_jobs(),
        lambda _store, job: job.checkpoints(1),
        lambda store, _job: store.history(JOB, 1),
    ],
    ids=["a removal", "a read", "a write", "a listing"],
)
def test_a_lost_session_fails_the_store_whatever_finds_it_out(
    store: Store, place: Place, call: Callable[[Store, StoredJob], object]
) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(2)
    cut(store, place)
    with pytest.raises(StoreError, match=r"unknown.*no new connection is made") as failed:
        call(store, job)
    assert failed.value.exit_code is ExitCode.COORDINATOR_LOST
    for again in (store.load_jobs, lambda: store.prune([(JOB, 1)]), lambda: job.checkpoints(1)):
        with pytest.raises(StoreError) as later:
            again()
        assert later.value is failed.value
    assert place.loaded() == [job.durable]


def test_no_second_session_is_ever_made(place: Place) -> None:
    """SQLAlchemy would make one by itself, which does not hold the lock."""
    with closing(open_database(place.url)) as database:
        assert isinstance(database, PostgresDatabase)
        with place.raw() as raw:
            raw.exec_driver_sql(f"SELECT pg_terminate_backend({database._session.info.backend_pid})")
        for _ in range(3):
            with pytest.raises(DBAPIError), database.connection.begin():
                database.connection.exec_driver_sql("SELECT 1")


def test_a_lock_that_is_left_within_the_wait_is_taken(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of a killed coordinator ends a moment after its process."""
    monkeypatch.setattr(opening, "_LOCK_WAIT_S", 60.0)
    opened: list[Store] = []
    waiting = threading.Thread(target=lambda: opened.append(place.open()))
    waiting.start()
    with place.raw() as raw:
        while not raw.exec_driver_sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").first():
            assert waiting.is_alive()
    store.close()
    waiting.join()
    opened[0].close()


def test_waiting_for_the_lead_writes_nothing_to_the_servers_log(
    store: Store, place: Place, postgres: "LocalPostgres"
) -> None:
    before = set(postgres.log().splitlines())  # other tests share the server
    with closing(PostgresCandidate(place.url)) as candidate:
        for _ in range(3):
            assert candidate.wait(0.01) is None
        assert candidate.holder()
        store.close()
        database = candidate.wait(10)
        assert database is not None
        database.close()
    assert not [line for line in postgres.log().splitlines() if "lock timeout" in line and line not in before]


def test_two_schemas_of_one_database_hold_two_stores(store: Store, place: Place) -> None:
    with closing(place.fresh().open()) as other:
        assert other.store_id != store.store_id
        StoredJob(other).open()
    assert store.load_jobs() == []


# -- servers, sessions and roles that are refused


def of(place: Place, *settings: str) -> str:
    """The place's URL with further settings of the session."""
    return place.url + quote("".join(f" -c{setting}" for setting in settings))


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("synchronous_commit=off", "synchronous_commit is off"),
        ("default_transaction_read_only=on", "transactions are read-only"),
        ("search_path=absent", "search_path names no schema"),
    ],
)
def test_a_session_that_cannot_keep_decisions_is_refused(place: Place, setting: str, why: str) -> None:
    with pytest.raises(StoreUnusableError, match=f"Nothing was started.*\n  - .*{why}") as refused:
        Store.open(of(place, setting))
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.usefixtures("postgres")
def test_a_server_that_could_lose_decisions_or_takes_none_is_refused() -> None:
    from onceward.dev.postgres.server import LocalPostgres

    with LocalPostgres(settings={"fsync": "off"}) as server:
        with pytest.raises(StoreUnusableError, match=r"Nothing was started.*\n  - fsync is off"):
            Store.open(server.url)
        server.kill()
        (server.directory / "data" / "standby.signal").touch(mode=0o644)
        server.restart()
        with pytest.raises(StoreUnusableError, match=r"Nothing was started.*\n  - the server is a standby"):
            Store.open(server.url)
        with psycopg.connect(server.url) as connection:
            made = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'onceward_meta'").fetchone()
        assert made == (0,)


def test_a_database_that_cannot_hold_every_text_is_refused(postgres: "LocalPostgres") -> None:
    name = f"d{secrets.token_hex(8)}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
        with pytest.raises(StoreUnusableError, match=r"Nothing was started.*\n  - .*encoding is LATIN1"):
            Store.open(postgres.url.removesuffix("/onceward") + f"/{name}")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_all_problems_are_reported_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST_VERSION", 99)
    with pytest.raises(StoreUnusableError) as refused:
        Store.open(of(place, "synchronous_commit=off"))
    assert re.findall(r"^  - (.{15})", str(refused.value), re.MULTILINE) == ["the server is P", "synchronous_com"]


@pytest.mark.parametrize("setting", ["local", "remote_write", "on", "remote_apply"])
def test_a_running_store_keeps_the_synchronous_commit_that_was_checked(place: Place, setting: str) -> None:
    shown = "SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'"
    with closing(open_database(of(place, f"synchronous_commit={setting}"))) as database:
        assert tuple(database.connection.exec_driver_sql(shown).one()) == (setting, "session")


def test_no_time_limit_of_the_role_ends_a_quiet_store(place: Place) -> None:
    limits = ("statement_timeout", "lock_timeout", "idle_session_timeout", "idle_in_transaction_session_timeout")
    with closing(open_database(of(place, *(f"{limit}=77s" for limit in limits)))) as database:
        found = {limit: database.connection.exec_driver_sql(f"SHOW {limit}").scalar() for limit in limits}
    assert found == dict.fromkeys(limits, "0")


@contextmanager
def pooler(postgres: "LocalPostgres") -> Iterator[int]:
    """Stand between like PgBouncer, which gives the client a process id of its own making; yields the port."""

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, socket.create_connection(("127.0.0.1", postgres.port)) as server:
            threading.Thread(target=pump, args=(client, server), daemon=True).start()
            buffered = b""
            while received := server.recv(65536):
                buffered += received
                at = buffered.find(b"K" + struct.pack("!i", 12))  # BackendKeyData: process id, secret key
                if at >= 0 and len(buffered) >= at + 13:
                    buffered = buffered[: at + 5] + struct.pack("!i", 4711) + buffered[at + 9 :]
                    client.sendall(buffered)
                    pump(server, client)
                    return

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while received := source.recv(65536):
                target.sendall(received)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_a_pooler_is_refused(place: Place, postgres: "LocalPostgres") -> None:
    with pooler(postgres) as port, pytest.raises(StoreUnusableError, match="a pooler or proxy stands between"):
        Store.open(place.url.replace(f":{postgres.port}/", f":{port}/") + "&sslmode=disable")


@pytest.fixture
def role(place: Place) -> Iterator[str]:
    """A role with a password and no rights."""
    name = f"r{place.url[-16:]}"
    place.run(f"CREATE ROLE {name} LOGIN PASSWORD 'se cret'")
    yield name
    place.run(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def as_role(place: Place, role: str) -> str:
    return place.url.replace("//onceward@", f"//{role}@")


def test_a_role_without_rights_is_refused_with_each_right_that_it_lacks(place: Place, role: str) -> None:
    url, schema = as_role(place, role), place.url[-17:]
    with pytest.raises(StoreUnusableError, match="search_path names no schema"):
        Store.open(url, password="se cret")
    place.run(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    with pytest.raises(StoreUnusableError, match="permission denied for schema"):
        Store.open(url, password="se cret")
    place.open().close()
    place.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    place.run(f"REVOKE UPDATE, DELETE ON jobs FROM {role}")
    with pytest.raises(StoreUnusableError, match=r"no DELETE on jobs\n.*no UPDATE on jobs"):
        Store.open(url, password="se cret")
    place.run(f"GRANT UPDATE, DELETE ON jobs TO {role}")
    with closing(Store.open(url, password="se cret")) as store:
        job = StoredJob(store)
        job.open()
        job.checkpoints(3)
        assert store.prune([(JOB, 1)])
        assert store.load_jobs() == [job.durable]


def test_a_role_that_does_not_own_an_older_store_is_refused_until_its_owner_has_migrated_it(
    place: Place, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, schema = as_role(place, role), place.url[-17:]
    place.open().close()
    place.run(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    place.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    with newer(lambda connection: connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN later TEXT")):
        with pytest.raises(StoreUnusableError, match="the role that migrates a store must own its tables") as refused:
            Store.open(url, password="se cret")
        place.open().close()
        Store.open(url, password="se cret").close()
    assert f"from schema version {SCHEMA_VERSION} to {SCHEMA_VERSION + 1}" in str(refused.value)


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_refused_password_is_reported_without_it(place: Place, role: str, password: str | None) -> None:
    with pytest.raises(StoreUnusableError, match=r"cannot be reached: .*password") as refused:
        Store.open(as_role(place, role), password=password)
    assert "wrong" not in str(refused.value)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    for url in ("postgresql://u:hunter2@127.0.0.1:1/d", "postgresql://u@127.0.0.1:1/d?sslpassword=hunter2"):
        with pytest.raises(StoreUnusableError, match="--store-password") as refused:
            Store.open(url)
        assert "hunter2" not in str(refused.value)


def test_a_server_that_is_not_there_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StoreUnusableError, match=r"cannot be reached: .*refused.*Nothing was started"):
        Store.open(f"postgresql://onceward@127.0.0.1:{port}/onceward")


# -- what SQLite does not enforce


def test_the_longest_names_that_the_wire_takes_fit(store: Store) -> None:
    job = StoredJob(store)
    job.open("d" * MAX_TOKEN)
    job.trigger(kind=CheckpointKind.SAVEPOINT, name="n" * MAX_LABEL)
    job.complete()
    assert ids(store) == [1]
    assert store.load_jobs() == [job.durable]


def test_a_sequence_number_beyond_four_bytes_fits(store: Store, place: Place) -> None:
    job = StoredJob(store)
    place.run("ALTER TABLE history ALTER COLUMN seq RESTART WITH 3000000000")
    job.open()
    assert len(store.history(JOB, 10)) == 2


def test_names_are_sorted_byte_by_byte() -> None:
    """A database's language could sort an underscore before or after letters, or ignore it."""
    dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    assert jobs.c.job.type.compile(dialect=dialect) == 'VARCHAR(63) COLLATE "C"'
