"""What would make this sink unsafe: found before the start, without writing a row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg.rows import namedtuple_row

from onceward.connectors.interfaces import Finding, Risk, Severity
from onceward.sinks.postgres.connecting import SCHEMA, Session, cause_of
from onceward.sinks.postgres.driver.tables import Table, describe, is_set_up, set_up
from onceward.sinks.postgres.server import Server

__all__ = ["OLDEST_VERSION", "Check", "examine"]

OLDEST_VERSION = 14
"""Major version of the server."""

_FACTS: LiteralString = """
    SELECT pg_backend_pid() AS backend, current_setting('server_version') AS version,
        current_setting('server_version_num')::int / 10000 AS major, pg_is_in_recovery() AS recovering,
        current_setting('transaction_read_only') = 'on' AS read_only, current_setting('fsync') AS fsync,
        current_user AS role, current_database() AS database
"""
_MISSING_RIGHTS: LiteralString = """
    SELECT needed || ' on onceward_sink.' || name FROM unnest(ARRAY['claims', 'receipts', 'staged']) AS name,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
    WHERE NOT has_table_privilege('onceward_sink.' || name, needed)
    UNION ALL SELECT 'CREATE on schema onceward_sink' WHERE NOT has_schema_privilege('onceward_sink', 'CREATE')
"""
_CLAIM: LiteralString = "SELECT system, timeline FROM onceward_sink.claims WHERE job = %s"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A table to examine."""

    table: str
    """As the program names it."""
    key: tuple[str, ...] = ()
    """Empty to append."""
    deletes: bool = False


def examine(
    session: Session, server: Server, job: str | None, checks: Sequence[Check], *, creates: bool = True
) -> tuple[Sequence[Table | None], Sequence[Finding]]:
    """Return each table, if it is there, and all findings. Creates the sink's own tables if they are missing, unless
    ``creates`` is false. Raises psycopg.Error if the server stops answering."""
    findings = list(_server(session))
    if any(found.severity is Severity.ERROR for found in findings):
        return [None] * len(checks), findings
    own = list(_own_tables(session, creates=creates))
    findings += own
    if job is not None and not own and is_set_up(session):
        findings += _moved(session, server, job)
    tables = [_found(session, check, findings) for check in checks]
    return tables, findings


def _found(session: Session, check: Check, findings: list[Finding]) -> Table | None:
    subject = f"sink table {check.table}"
    try:
        table = describe(session, check.table)
    except (psycopg.DataError, psycopg.ProgrammingError) as error:
        findings.append(_error(subject, cause_of(error), "Write the name as in SQL"))
        return None
    if table is None:
        message = "it does not exist, or the role may not use its schema"
        findings.append(_error(subject, message, "Create it, or name its schema"))
        return None
    findings += _table(table, check)
    return table


def _server(session: Session) -> Iterator[Finding]:
    with session.cursor(row_factory=namedtuple_row) as cursor:
        facts: Any = cursor.execute(_FACTS).fetchone()
    subject = f"database {facts.database}"
    if session.info.backend_pid != facts.backend:
        yield _error(
            subject,
            "a pooler stands between: it can move the session to another connection, with other settings",
            "Name the server itself",
        )
    if facts.major < OLDEST_VERSION:
        yield _error(subject, f"the server is PostgreSQL {facts.version}", f"Use {OLDEST_VERSION} or newer")
    if facts.recovering:
        yield _error(
            subject,
            "the server is a standby, or still recovers: it takes no writes",
            "Name the primary, or all servers with target_session_attrs=read-write",
        )
    elif facts.read_only:
        yield _error(
            subject, "transactions are read-only", f"ALTER ROLE {facts.role} SET default_transaction_read_only TO off"
        )
    if facts.fsync != "on":
        yield Finding(
            severity=Severity.WARNING,
            subject=subject,
            message="fsync is off: a crash of the server's machine loses rows that were confirmed, or all of them",
            fix="Set fsync to on",
            risk=Risk.REPLICATION,
        )


def _own_tables(session: Session, *, creates: bool) -> Iterator[Finding]:
    subject = f"schema {SCHEMA}"
    try:
        if not is_set_up(session):
            with session.transaction(force_rollback=not creates):
                set_up(session)
                if not creates:
                    return
    except psycopg.Error as error:
        yield _error(
            subject,
            f"the sink keeps its claims, receipts and staged rows there, and cannot create it: {cause_of(error)}",
            f"GRANT CREATE ON DATABASE to the role, or CREATE SCHEMA {SCHEMA} AUTHORIZATION the role",
        )
        return
    missing = [right for (right,) in session.execute(_MISSING_RIGHTS)]
    if missing:
        yield _error(
            subject, f"the role lacks {', '.join(missing)}", "Grant them, or use one role for all jobs of the database"
        )


def _moved(session: Session, server: Server, job: str) -> Iterator[Finding]:
    """Whether the database is another than when the job ran last."""
    found = session.execute(_CLAIM, (job,)).fetchone()
    if found is None:
        return
    system, timeline = found
    if system != server.id:
        yield _error(
            f"database {server.database}",
            f"job {job} ran on database {system}, and this is {server.id}: it was restored from a dump, which has the "
            "commits until then and no later ones",
            "Bring the former database back. If what is missing may be missing, run: "
            f"DELETE FROM {SCHEMA}.claims WHERE job = '{job}'",
        )
    elif timeline and server.timeline and timeline != server.timeline:
        yield Finding(
            severity=Severity.WARNING,
            subject=f"database {server.database}",
            message=f"the server is on timeline {server.timeline}, and was on {timeline} when job {job} ran last: "
            "another server took over, or a backup was restored. If commits that were confirmed are missing there, the "
            "job halts",
            fix="Nothing. Make sure that the former server does not run any more",
        )


def _table(table: Table, check: Check) -> Iterator[Finding]:
    subject = f"sink table {table.full_name}"
    if table.kind not in ("r", "p"):
        yield _error(subject, "it is no table of this database, but a view or a foreign table", "Name a table")
    needed = {"INSERT", *(("SELECT", "UPDATE") if check.key else ()), *(("DELETE",) if check.deletes else ())}
    if missing := ", ".join(right for right in table.missing_rights if right in needed):
        yield _error(subject, f"the role lacks {missing}", f"GRANT {missing} ON {table.full_name} to the role")
    if check.key and not any(index.plain and {*index.columns} == {*check.key} for index in table.unique):
        known = {column.name for column in table.columns}
        columns = ", ".join(check.key)
        if absent := [name for name in check.key if name not in known]:
            yield _error(subject, f"it has no column {', '.join(absent)}, which the key names", "Correct the key")
        else:
            yield _error(
                subject,
                f"no unique index is on exactly the columns of the key ({columns}), for all rows and checked at once",
                f"ALTER TABLE {table.full_name} ADD UNIQUE ({columns})",
            )
    if table.secured:
        yield _warning(
            subject,
            "policies for rows apply to the role. A row that they refuse is found after the decision, and halts the "
            "job",
            "Give the role BYPASSRLS, or make sure that the policies let every row pass",
        )
    if table.triggers:
        yield _warning(
            subject,
            f"it has triggers ({', '.join(table.triggers)}). They run in the merge: what they refuse is found after "
            "the decision, and a trigger that drops rows halts the job",
            "Make sure that they let every row pass, and do nothing outside of the database",
        )
    defaults = {column.name for column in table.columns if column.has_default or column.computed}
    unique = [
        f"{index.name} ({', '.join(index.columns)})"
        for index in table.unique
        if not defaults.intersection(index.columns) and {*index.columns} != {*check.key}
    ]
    if late := [*unique, *table.late]:
        yield _warning(
            subject,
            f"it has unique indexes, foreign keys or exclusion constraints ({', '.join(late)}). A row that breaks one "
            "is found after the decision, and halts the job until the row that is in its way is removed",
            "Make sure that no row breaks them, or drop them",
        )


def _error(subject: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, subject=subject, message=message, fix=fix)


def _warning(subject: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.WARNING, subject=subject, message=message, fix=fix)
