"""What ``onceward doctor`` asks a database: the preflight of a sink, without a job that starts."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, LiteralString

import psycopg
from psycopg.rows import namedtuple_row

from onceward.connectors.interfaces import Examined
from onceward.sinks.postgres.connecting import SCHEMA, Session, cause_of, connect
from onceward.sinks.postgres.driver import preflight
from onceward.sinks.postgres.driver.tables import Table, is_set_up
from onceward.sinks.postgres.errors import DatabaseError
from onceward.sinks.postgres.executor.writer import PostgresSlotWriter
from onceward.sinks.postgres.server import server_of

__all__ = ["examine"]

_FACTS: LiteralString = """
    SELECT current_setting('server_version') AS version, current_user AS role, current_database() AS database,
        (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') AS commits,
        (SELECT count(*) FROM pg_stat_replication) AS standbys,
        current_setting('synchronous_standby_names') <> '' AS waits
"""
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def examine(dsn: str, tables: Sequence[str], job: str | None) -> Examined:
    """Return facts and all findings. Creates nothing. ``tables``: as in SQL.

    ``job``: whether the database is the one that it ran on. Raises DatabaseError if the database cannot be reached, or
    stops answering.
    """
    with closing(connect(dsn)) as session:
        try:
            checks = [preflight.Check(table=name) for name in tables]
            found, findings = preflight.examine(session, server_of(session), job, checks, creates=False)
            return Examined(
                facts=[*_facts(session), *filter(None, map(_fact, found))],
                findings=findings,
                libraries=PostgresSlotWriter.libraries,
            )
        except psycopg.Error as error:
            raise DatabaseError(f"The database does not answer: {cause_of(error)}. Nothing was changed.") from error


def _facts(session: Session) -> Iterator[tuple[str, str]]:
    with session.cursor(row_factory=namedtuple_row) as cursor:
        facts: Any = cursor.execute(_FACTS).fetchone()
    commits = f"synchronous_commit {facts.commits}" + (", on for sinks" if facts.commits == "off" else "")
    yield f"database {facts.database}", f"PostgreSQL {facts.version}, role {facts.role}, {commits}, {_standbys(facts)}"
    if not is_set_up(session):
        yield f"schema {SCHEMA}", "the first start of a job creates it"


def _standbys(facts: Any) -> str:
    if not facts.standbys:
        return "no standby is connected"
    waits = "commits wait for one" if facts.waits else "no commit waits for one: a fail-over may lose the last commits"
    return f"{facts.standbys} standbys, {waits}"


def _fact(table: Table | None) -> tuple[str, str] | None:
    if table is None:
        return None
    granted = [right for right in _RIGHTS if right not in table.missing_rights]
    keys = [", ".join(index.columns) for index in table.unique if index.plain]
    upserts = f"keys for upserts: {'; '.join(keys)}" if keys else "no key for upserts"
    return (
        f"sink table {table.full_name}",
        f"{len(table.columns)} columns, rights {', '.join(granted) or 'none'}, {upserts}",
    )
