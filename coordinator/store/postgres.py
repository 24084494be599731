"""A store in a schema of a PostgreSQL database, held by a lock of the one session that writes.

The server ends a session that is silent for PAUSE_S, and the lock ends with it: another coordinator can replace one
that is stopped or cut off.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import namedtuple_row
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from onceward.common.printable import log_fields, logger
from onceward.coordinator.store.database import MAX_STANDBYS, Beside, Candidate, Database, StoreKind, cause_of
from onceward.coordinator.store.errors import StoreError, StoreUnusableError
from onceward.coordinator.store.schema import meta, metadata
from onceward.coordinator.store.term import LEADER_RECORDS, leader_of
from onceward.wire.rows import Leader, Standby

__all__ = [
    "LOCK_SPACE",
    "OLDEST_VERSION",
    "PAUSE_S",
    "Examination",
    "PostgresCandidate",
    "PostgresDatabase",
    "examine",
]

PAUSE_S = 2.0
OLDEST_VERSION = 14
"""Major version of the server."""

_log = logger("onceward.store")

_SECRETS = ("password", "sslpassword")
LOCK_SPACE = 0x6F6E6365
"""First half of the advisory lock's key; the second is the schema, so that each schema can hold a store."""
_STANDBY_SPACE = LOCK_SPACE + 1
"""Each session that waits shares this lock until it ends: the leader sees who waits, and nothing is written for it."""
_DEFAULTS = {
    "connect_timeout": "10",
    # A link that swallows everything ends the session in half a minute, and with it the coordinator.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
_OURS = {
    # The server notices as soon that the coordinator's machine is gone, and releases the lock.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    # Waiting for the lock and a long removal are no reason to end the session.
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "transaction_timeout": "0",
    "default_transaction_isolation": "read committed",
}
"""Settings of the session, whatever the role, the database or the server says."""
_WAITING = {"idle_session_timeout": str(round(PAUSE_S * 1000))}
"""Waiting is work. But a process that stands still could get the lock, and no process would lead until it wakes."""
_OPENING = {
    # A process that stands still is replaced; one that decodes a large row on a busy machine is not.
    "idle_session_timeout": "10000",
    "idle_in_transaction_session_timeout": "10000",
    # A migration and a large row over a slow link may take their time.
    "transaction_timeout": "60000",
}
"""Until the jobs are read. With the limits of a leader, a store of many jobs on a distant database would never have
one."""
_LEADING = {
    **_WAITING,
    "idle_in_transaction_session_timeout": str(round(PAUSE_S * 1000)),
    # For a leader that stops in the middle of a message, which the server counts as work. Since PostgreSQL 17.
    "transaction_timeout": "10000",
}
_ALONE_S = 10.0
"""How long a migration waits for sessions that use the tables."""
_READING = {
    **_OURS,
    "default_transaction_read_only": "on",
    # A listing has several statements, and the leader writes between them.
    "default_transaction_isolation": "repeatable read",
    # A listing that takes longer keeps the others waiting.
    "statement_timeout": "10000",
    "idle_in_transaction_session_timeout": "60000",
}
_FACTS: LiteralString = """
    SELECT pg_backend_pid() AS backend, current_setting('server_version') AS version,
        current_setting('server_version_num')::int / 10000 AS major, pg_is_in_recovery() AS recovering,
        current_setting('transaction_read_only') = 'on' AS read_only,
        current_setting('synchronous_commit') AS synchronous,
        current_setting('synchronous_standby_names') AS standbys, current_setting('fsync') AS fsync,
        current_setting('server_encoding') AS encoding, current_user AS role, current_database() AS database,
        current_schema() AS schema, (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AS place
"""
_HOLDER: LiteralString = """
    SELECT pid, client_addr, application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = %s AND objid = %s AND granted
"""
_WAIT_FOR_LOCK: LiteralString = """
    DO $$ BEGIN
        PERFORM pg_advisory_lock({}, {}::oid::int);
    EXCEPTION WHEN lock_not_available THEN NULL;
    END $$
"""
"""An error that the session raised would be two lines of the server's log, for each standby twice a second."""
_HOLDS: LiteralString = """
    SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid = %s
        AND objid = %s AND objsubid = 2 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
_STANDBYS: LiteralString = """
    SELECT application_name, host(client_addr), backend_start FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = %s AND objid = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
        AND granted AND pid <> pg_backend_pid()
    ORDER BY backend_start LIMIT %s
"""
_MISSING_RIGHTS: LiteralString = """
    SELECT needed || ' on ' || name FROM unnest(%s::text[]) AS name,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
    WHERE NOT has_table_privilege(quote_ident(current_schema()) || '.' || name, needed) ORDER BY name, needed
"""
_USERS: LiteralString = """
    SELECT DISTINCT 'process ' || pid || coalesce(' "' || nullif(application_name, '') || '"', '')
        || coalesce(' of role ' || usename, '') || coalesce(' since ' || date_trunc('second', xact_start), '')
    FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE relation = ANY (SELECT to_regclass(quote_ident(current_schema()) || '.' || quote_ident(name))
        FROM unnest(%s::text[]) AS name) AND granted AND pid <> pg_backend_pid()
"""
_TABLES: LiteralString = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
_MAY_CREATE: LiteralString = "SELECT has_schema_privilege(current_schema(), 'CREATE')"
_TIMELINE: LiteralString = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_HOLDING: LiteralString = """
    SELECT 'the transaction of process ' || pid || coalesce(' "' || nullif(application_name, '') || '"', '')
        || coalesce(' of role ' || usename, '') || ', open since ' || date_trunc('second', xact_start)
    FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
        AND xact_start < clock_timestamp() - make_interval(secs => %(long)s)
    UNION ALL
    SELECT 'the prepared transaction ' || quote_literal(gid) || ', of ' || date_trunc('second', prepared)
    FROM pg_prepared_xacts WHERE database = current_database()
        AND prepared < clock_timestamp() - make_interval(secs => %(long)s)
    UNION ALL
    SELECT 'the replication slot ' || quote_ident(slot_name) || ', which no process reads'
    FROM pg_replication_slots WHERE xmin IS NOT NULL AND NOT active
"""
_LONG_S = 600.0
"""A transaction that has been open for this long."""
_CLOCK: LiteralString = "SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('TimeZone')"

Session = psycopg.Connection[Any]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What a coordinator would find. Nothing was changed, and no lock taken."""

    version: str
    """Of the server."""
    database: str
    schema: str
    role: str
    leader: str
    """The session that holds the store; empty for none."""
    is_new: bool
    """There are no tables yet: the first start creates them."""
    problems: Sequence[str]
    """For which a start is refused."""
    missing_rights: Sequence[str]
    """As ``INSERT on jobs``."""
    zone: str
    """Of the session. What the store keeps is in UTC."""
    ahead_s: float
    """How far the server's clock is before this machine's, ``give_or_take_s``."""
    give_or_take_s: float
    holding: Sequence[str] = ()
    """What has kept old versions of rows for long, for example an open transaction."""


def examine(url: str, password: str | None = None) -> Examination:
    """Raises StoreUnusableError for a server that cannot be reached or asked."""
    with closing(_connect(url, password)) as session:
        try:
            return _examined(session)
        except psycopg.Error as error:
            raise StoreUnusableError(f"The store {url} could not be asked: {cause_of(error)}.") from error


def _examined(session: Session) -> Examination:
    facts = _facts(session)
    problems, missing, leader = _problems(session, facts), [], ""
    tables = {name for (name,) in session.execute(_TABLES)}
    if facts.schema is not None:
        leader = _holder(session, facts)
        if not tables and session.execute(_MAY_CREATE).fetchone() != (True,):
            missing = [f"CREATE on schema {facts.schema}"]
        elif tables and meta.name not in tables:
            problems.append(f"schema {facts.schema} is of something else: it has tables, and no table {meta.name}")
        else:
            ours = sorted(tables & {table.name for table in metadata.sorted_tables})
            missing = [right for (right,) in session.execute(_MISSING_RIGHTS, (ours,))]
    holding = [held for (held,) in session.execute(_HOLDING, {"long": _LONG_S})]
    begun = time.time()
    server_s, zone = session.execute(_CLOCK).fetchone() or (begun, "")
    took = time.time() - begun
    return Examination(
        version=facts.version,
        database=facts.database,
        schema=facts.schema or "",
        role=facts.role,
        leader=leader,
        is_new=not tables,
        problems=problems,
        missing_rights=missing,
        zone=zone,
        ahead_s=server_s - begun - took / 2,
        give_or_take_s=took / 2,
        holding=holding,
    )


class PostgresCandidate(Candidate):
    """A session that waits for the lock of a schema. Raises StoreUnusableError (unreachable, or not fit to keep
    decisions)."""

    waits = True

    def __init__(self, url: str, password: str | None = None) -> None:
        self._url, self._password = url, password
        self._leads = False
        self._waits = False
        self._session = session = _connect(url, password)
        try:
            with self._unusable("checked"):
                self._facts = facts = _facts(session)
                _refuse(url, _problems(session, facts))
                # Pinned as it is now: the server's configuration may change under a running store.
                _set(session, {**_OURS, "synchronous_commit": facts.synchronous})
        except BaseException:
            session.close()
            raise

    def wait(self, seconds: float) -> "PostgresDatabase | None":
        session, key = self._session, (LOCK_SPACE, self._facts.place)
        with self._unusable("locked"):
            _set(session, {**_WAITING, "lock_timeout": str(max(1, round(seconds * 1000)))})
            session.execute(sql.SQL(_WAIT_FOR_LOCK).format(*map(sql.Literal, key)))
            if session.execute(_HOLDS, key).fetchone() != (True,):
                if not self._waits:
                    session.execute("SELECT pg_advisory_lock_shared(%s, %s::oid::int)", (_STANDBY_SPACE, key[1]))
                    self._waits = True
                return None
            _set(session, {"lock_timeout": "0"})
            timeline = _timeline(session)
        database = PostgresDatabase(self._url, session, timeline, lambda: _connect(self._url, self._password))
        self._leads = True
        facts = self._facts
        said = {
            "event": "store_opened",
            "server": facts.version,
            "database": facts.database,
            "schema": facts.schema,
            "synchronous_commit": facts.synchronous,
            "standbys": facts.standbys,
            "timeline": timeline,
        }
        _log.info("%s", log_fields(said))
        return database

    def leader(self) -> Leader | None:
        with self._unusable("read"):
            if self._session.execute("SELECT to_regclass(%s)", (meta.name,)).fetchone() == (None,):
                return None
            return leader_of(dict(self._session.execute(LEADER_RECORDS).fetchall()))

    def holder(self) -> str:
        """For messages: the process that holds the lock."""
        with self._unusable("read"):
            return _holder(self._session, self._facts) or "unknown"

    def close(self) -> None:
        if not self._leads:
            self._session.close()

    @contextlib.contextmanager
    def _unusable(self, what: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise StoreUnusableError(
                f"The store {self._url} could not be {what}: {cause_of(error)}. Nothing was started."
            ) from error


class PostgresDatabase(Database):
    """One schema of a database, through a session that holds its lock."""

    kind = StoreKind.POSTGRESQL
    own_place = "its own schema or database"
    errors = (SQLAlchemyError, psycopg.Error)

    def __init__(self, url: str, session: Session, timeline: int, connect: Callable[[], Session]) -> None:
        """:param connect: makes another session."""
        self.name = url
        self._connect = connect
        self.read_beside = self._read_beside
        self.timeline = timeline
        self._session = session
        session.autocommit = False
        self._engine = _engine(session)
        with self.translated("opening the store"):
            self.connection = self._engine.connect()

    def _read_beside(self) -> Beside:
        session = self._connect()
        try:
            _set(session, _READING)
            session.autocommit = False
            engine = _engine(session)
            return Beside(connection=engine.connect(), close=session.close)
        except BaseException:
            session.close()
            raise

    def limit_silence(self) -> None:
        self.pause_s = PAUSE_S
        self._limit(_OPENING)

    def limit_lead(self) -> None:
        self._limit(_LEADING)

    def allow_silence(self) -> None:
        self._limit({name: _OURS[name] for name in _WAITING})

    def _limit(self, settings: Mapping[str, str]) -> None:
        with self.connection.begin():
            _set(self._session, settings)

    def standbys(self) -> Sequence[Standby]:
        rows = self._session.execute(_STANDBYS, (_STANDBY_SPACE, MAX_STANDBYS)).fetchall()
        return [Standby(name=name or "", address=address or "", since=since) for name, address, since in rows]

    def explain(self, error: Exception, doing: str) -> StoreError:
        if isinstance(getattr(error, "orig", error), psycopg.errors.InsufficientPrivilege):
            return StoreUnusableError(
                f"The store {self.name} is not the role's to use: {cause_of(error)}, seen while {doing}. Give the role "
                "the rights that the how-to names; the role that migrates a store must own its tables."
            )
        return StoreError(
            f"The store failed while {doing}: {cause_of(error)}. Whether the last write happened is unknown, so "
            "nothing is built on it, and no new connection is made: the coordinator ends, and its next start reads "
            "what is in the database. Look at the database's log."
        )

    def together(self) -> contextlib.AbstractContextManager[object]:
        return self._session.pipeline()

    def is_lost(self, error: Exception) -> bool:
        return super().is_lost(error) or self._session.closed

    def check_rights(self, tables: Collection[str]) -> None:
        rows = self.connection.exec_driver_sql(_MISSING_RIGHTS, (sorted(tables),)).scalars()
        _refuse(self.name, [f"the role has no {right}" for right in rows])

    def require_alone(self, tables: Collection[str]) -> None:
        named = ", ".join(f'"{table}"' for table in sorted(tables))
        with self.translated("waiting for the sessions that use its tables"):
            # other sessions may take long to end, and so may the migration
            _set(self._session, {"lock_timeout": str(round(_ALONE_S * 1000)), "transaction_timeout": "0"})
            try:
                with self.connection.begin_nested():
                    self.connection.exec_driver_sql(f"LOCK TABLE {named} IN ACCESS EXCLUSIVE MODE")
            except DBAPIError as error:
                if not isinstance(error.orig, psycopg.errors.LockNotAvailable):
                    raise
                users = self.connection.exec_driver_sql(_USERS, (sorted(tables),)).scalars().all()
                raise StoreUnusableError(
                    f"The store {self.name} is of an older version and has to be migrated, but other sessions use its "
                    f"tables ({', '.join(users) or 'unknown'}). Nothing was changed. Start again when they have "
                    "ended: a dump or a report ends by itself, any other by SELECT pg_terminate_backend(PID)."
                ) from error
            _set(self._session, {"lock_timeout": "0"})

    def secure_creation(self) -> None:
        """They are committed as every later write is."""

    def close(self) -> None:
        with contextlib.suppress(SQLAlchemyError, psycopg.Error):
            self.connection.close()
            self._engine.dispose()
        self._session.close()


def _refuse(url: str, problems: Collection[str]) -> None:
    if problems:
        raise StoreUnusableError(
            f"The store {url} cannot be trusted with decisions. Nothing was started. Change these:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )


def _connect(url: str, password: str | None) -> Session:
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise StoreUnusableError(
            f"The store's URL cannot be read: {cause_of(error)}. Nothing was started. Write for example "
            "postgresql://onceward@db.example.org/onceward"
        ) from None
    shown = [name for name in _SECRETS if given.get(name)]
    if shown:
        raise StoreUnusableError(
            f"The store's URL holds a secret ({', '.join(shown)}), which every list of processes would show. Nothing "
            "was started. Leave it out, and pass --store-password env:NAME or file:PATH."
        )
    ours = {"fallback_application_name": f"onceward {socket.gethostname()[:40]}:{os.getpid()}"}
    secret = {"password": str(password)} if password is not None else {}
    settings: dict[str, Any] = {**_DEFAULTS, **ours, **given, **secret, "client_encoding": "UTF8"}
    try:
        return psycopg.connect(**settings, autocommit=True)
    except psycopg.OperationalError as error:
        raise StoreUnusableError(
            f"The store {url} cannot be reached: {cause_of(error)}. Nothing was started."
        ) from None


def _facts(session: Session) -> Any:
    with session.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(_FACTS).fetchone()


def _timeline(session: Session) -> int:
    """The server's timeline, which a promotion ends. The first one if it does not say: some services keep no log."""
    try:
        ((timeline,),) = session.execute(_TIMELINE).fetchall()
    except psycopg.DatabaseError:
        return 1
    return int(timeline, 16)


def _holder(session: Session, facts: Any) -> str:
    """The session that holds the store's lock; empty for none."""
    found = session.execute(_HOLDER, (LOCK_SPACE, facts.place)).fetchone()
    return f"{found[2]} at {found[1] or 'a local socket'}, session {found[0]}" if found else ""


def _set(session: Session, settings: Mapping[str, str]) -> None:
    """Set settings of the session, without those that this server does not know."""
    session.execute(
        "SELECT set_config(name, ours.value, false) FROM pg_settings"
        " JOIN unnest(%s::text[], %s::text[]) AS ours (name, value) USING (name)",
        (list(settings), list(settings.values())),
    )


def _problems(session: Session, facts: Any) -> list[str]:
    problems = []
    if session.info.backend_pid != facts.backend:
        problems.append(
            "a pooler or proxy stands between: it can move the session to another connection, which does not hold the "
            "store's lock. Name the server itself"
        )
    if facts.major < OLDEST_VERSION:
        problems.append(f"the server is PostgreSQL {facts.version}; use {OLDEST_VERSION} or newer")
    if facts.recovering:
        problems.append("the server is a standby, or still recovers: it takes no writes. Name the primary")
    elif facts.read_only:
        problems.append("transactions are read-only: set default_transaction_read_only to off for the role")
    if facts.synchronous == "off":
        problems.append(
            "synchronous_commit is off: a crash of the server would lose decisions that were already carried out. "
            "Set it to on for the role"
        )
    if facts.fsync != "on":
        problems.append("fsync is off: a crash of the server's machine would damage the store. Set it to on")
    if facts.encoding != "UTF8":
        problems.append(f"the database's encoding is {facts.encoding}, which cannot hold every text. Make one in UTF8")
    if facts.schema is None:
        problems.append("the role's search_path names no schema that is there. Make one, or name it in the URL")
    return problems


def _engine(session: Session) -> Engine:
    return create_engine("postgresql+psycopg://", creator=_only(session), poolclass=NullPool, use_native_hstore=False)


def _only(session: Session) -> Callable[[], Session]:
    """Hand the session to SQLAlchemy once. It asks for another one when it has lost it, and would go on without the
    lock."""
    sessions = [session]

    def creator() -> Session:
        if not sessions:
            raise psycopg.OperationalError("the session is lost, and the store's lock with it")
        return sessions.pop()

    return creator
