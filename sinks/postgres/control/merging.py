"""The merge: one transaction that proves who owns the job, leaves a receipt, and moves the rows.

Receipt, rows and the end of the staging are one transaction. So the receipt alone proves a commit. Where neither the
receipt nor the staging is there, the rows can never be merged; one snapshot shows both.

A database that has gone back, to a backup or to what a standby had received, lacks the end of its log. So it has all
that was merged before the last receipt that it shows, and each checkpoint names the receipt that it comes after.
"""

from collections.abc import Iterable, Sequence
from typing import LiteralString

from psycopg import sql

from onceward.common.killpoints import KillPoint, kill_point
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.postgres.connecting import POSITION, SCHEMA, Session
from onceward.sinks.postgres.documents import PostgresCommittable, Receipt
from onceward.sinks.postgres.server import Server

__all__ = ["drop", "look", "merge", "went_back"]

_KEPT_FOR = "7 days"
"""For people. A checkpoint is merged when all before it are settled: their receipts prove nothing any more."""

_FOLLOWS = """
    SELECT EXISTS (SELECT FROM onceward_sink.receipts
        WHERE job = %(job)s AND sink = %(sink)s AND checkpoint = %(after)s AND token = %(after_token)s)
"""
_LOOK = f"""
    SELECT (SELECT token FROM onceward_sink.receipts
            WHERE job = %(job)s AND sink = %(sink)s AND store = %(store)s AND checkpoint = %(checkpoint)s),
        ARRAY(SELECT name FROM onceward_sink.staged
            WHERE name = ANY(%(names)s) AND job = %(job)s AND sink = %(sink)s AND generation = %(generation)s),
        ({_FOLLOWS})
"""
_NEWEST = """
    SELECT max(checkpoint) FROM onceward_sink.receipts
    WHERE job = %(job)s AND sink = %(sink)s AND store = %(store)s AND token <> %(token)s
"""
_RECEIPT = """
    INSERT INTO onceward_sink.receipts (job, sink, store, checkpoint, token, records)
    VALUES (%(job)s, %(sink)s, %(store)s, %(checkpoint)s, %(token)s, %(records)s) ON CONFLICT DO NOTHING
"""
_OLD_RECEIPTS = f"""
    DELETE FROM onceward_sink.receipts
    WHERE job = %(job)s AND sink = %(sink)s AND checkpoint <> %(checkpoint)s AND at < now() - interval '{_KEPT_FOR}'
"""
_UNREGISTER = """
    DELETE FROM onceward_sink.staged
    WHERE name = ANY(%(names)s) AND job = %(job)s AND sink = %(sink)s AND generation = %(generation)s
    RETURNING name, records
"""


_UPSERT: LiteralString = """
    WITH last AS MATERIALIZED (
        SELECT DISTINCT ON ({key}) * FROM ({staged}) staged ORDER BY {key}, onceward_slot DESC, {position} DESC),
    deleted AS (DELETE FROM {target} t USING last l WHERE l.onceward_deleted AND {same}),
    written AS (
        INSERT INTO {target} ({columns}) SELECT {columns} FROM last WHERE NOT onceward_deleted
        ON CONFLICT ({key}) DO UPDATE SET {changes} RETURNING 1)
    SELECT (SELECT count(*) FROM last WHERE NOT onceward_deleted), (SELECT count(*) FROM written)
"""
"""One statement: what it deletes and what it writes are other keys."""
_MEMORY: LiteralString = """
    SELECT set_config('work_mem', '64MB', true) WHERE pg_size_bytes(current_setting('work_mem')) < 64 * 1024 * 1024
"""
"""For the sort of a checkpoint's rows, until the transaction ends."""


def went_back(session: Session, handle: PostgresCommittable, lacks: Receipt) -> str:
    """What it means that the receipt that it ``lacks`` is gone, and what to do."""
    row = session.execute(_NEWEST, _values(handle)).fetchone()
    assert row is not None, "an aggregate has one row"
    newest, names = row[0], (handle.job, handle.sink, handle.store)
    values = ", ".join("'{}'".format(name.replace("'", "''")) for name in names)
    again = (
        ""
        if newest is None
        else f"To write all that came after checkpoint {newest}, the newest whose receipt is there, again, into all "
        f"outputs of the job, run onceward restore {handle.job} --from {newest} --reason 'NAME: REASON'. "
    )
    return (
        "The database is older than it was: it was restored from a backup, or another server took over that had not "
        f"received everything. Rows of checkpoint {lacks.checkpoint}, and perhaps of earlier ones, are missing, and "
        f"nothing further was merged. Bring the newest copy back if there is one. {again}To continue without them, run "
        "INSERT INTO onceward_sink.receipts (job, sink, store, checkpoint, token, records) VALUES "
        f"({values}, {lacks.checkpoint}, '{lacks.token}', 0)"
    )


def look(session: Session, server: Server, handle: PostgresCommittable) -> Settlement:
    """What the database proves now. Changes nothing."""
    row = session.execute(_LOOK, _values(handle)).fetchone()
    assert row is not None, "it selects one row"
    token, staged, follows = row
    if token is not None:
        return _by_receipt(handle, token)
    if handle.after is not None and not follows:
        return _went_back(session, handle, handle.after)
    missing = [name for name in handle.names if name not in staged]
    if not missing:
        return _doubt(handle, "it is not merged, and all of it is staged")
    return _gone(server, handle, missing)


def merge(session: Session, server: Server, handle: PostgresCommittable) -> Settlement:
    """Merge the rows in a transaction that the caller has begun and ends; it has locked and compared the claim. The
    transaction is to be committed if the outcome is committed, and else rolled back. Raises psycopg.Error."""
    values = _values(handle)
    # first: another process that merges the same is waited for here, and a repetition ends here
    if session.execute(_RECEIPT, values).rowcount == 0:
        return look(session, server, handle)
    if handle.after is not None and session.execute(_FOLLOWS, values).fetchone() != (True,):
        return _went_back(session, handle, handle.after)
    found = dict(session.execute(_UNREGISTER, values).fetchall())
    missing = [table.name for table in handle.tables if table.name not in found]
    if missing:
        return _gone(server, handle, missing)
    if changed := [table.name for table in handle.tables if found[table.name] != table.records]:
        return _doubt(handle, f"the staging tables {', '.join(changed[:3])} have other rows than their slots voted for")
    if wrong := (_upsert if handle.key else _append)(session, handle):
        return _doubt(
            handle,
            f"{wrong}, so nothing was merged: a trigger or a rule of the table drops rows, or the "
            "staging tables were changed",
        )
    drop(session, handle.names)
    session.execute(_OLD_RECEIPTS, values)
    kill_point(KillPoint.DRIVER_BETWEEN_END_TXN)
    return _committed(handle)


def _append(session: Session, handle: PostgresCommittable) -> str:
    """Move the rows. Returns what is wrong with their number."""
    columns = _listed(handle.columns)
    for table in handle.tables:
        staging = sql.Identifier(SCHEMA, table.name)
        statement = sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {}")
        moved = session.execute(statement.format(sql.Identifier(*handle.target), staging, columns=columns)).rowcount
        if moved != table.records:
            return (
                f"slot {table.slot} has voted for {table.records} rows, and {moved} of them came into "
                f"{'.'.join(handle.target)}"
            )
    return ""


def _upsert(session: Session, handle: PostgresCommittable) -> str:
    """Of the rows with one key, let the last one by input order replace or delete the row of the table. Returns what is
    wrong with their number."""
    select = sql.SQL("SELECT {columns}, {deleted} AS onceward_deleted, {n} AS onceward_slot, {position} FROM {staging}")
    union = sql.SQL(" UNION ALL ").join(
        select.format(
            columns=_listed(handle.columns),
            deleted=sql.SQL("coalesce({}, false)").format(sql.Identifier(handle.delete)) if handle.delete else False,
            n=number,
            position=sql.Identifier(POSITION),
            staging=sql.Identifier(SCHEMA, table.name),
        )
        for number, table in enumerate(handle.tables)
    )
    others = [name for name in handle.columns if name not in handle.key] or handle.key
    statement = sql.SQL(_UPSERT).format(
        staged=union,
        target=sql.Identifier(*handle.target),
        columns=_listed(handle.columns),
        key=_listed(handle.key),
        same=sql.SQL(" AND ").join(sql.SQL("t.{0} = l.{0}").format(sql.Identifier(name)) for name in handle.key),
        position=sql.Identifier(POSITION),
        changes=sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others),
    )
    session.execute(_MEMORY)
    row = session.execute(statement).fetchone()
    assert row is not None, "it selects one row"
    wanted, written = row
    if written != wanted:
        return f"{wanted} keys are to be written, and {written} of them came into {'.'.join(handle.target)}"
    return ""


def _listed(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def drop(session: Session, names: Sequence[str]) -> None:
    """Drop staging tables that were registered."""
    if names:
        tables = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for name in names)
        session.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(tables))


def _values(handle: PostgresCommittable) -> dict[str, object]:
    return {
        "job": handle.job,
        "sink": handle.sink,
        "store": handle.store,
        "generation": handle.generation,
        "checkpoint": handle.checkpoint,
        "token": handle.token,
        "records": handle.records,
        "names": handle.names,
        "after": None if handle.after is None else handle.after.checkpoint,
        "after_token": None if handle.after is None else handle.after.token,
    }


def _by_receipt(handle: PostgresCommittable, token: str) -> Settlement:
    if token == handle.token:
        return _committed(handle)
    return _doubt(
        handle,
        "the receipt of this checkpoint is for other rows: two checkpoints of one store have the same number, as after "
        "a restored copy of it",
    )


def _committed(handle: PostgresCommittable) -> Settlement:
    evidence = f"the receipt of checkpoint {handle.checkpoint} has the token {handle.token}"
    return Settlement(slot=0, outcome=Outcome.COMMITTED, evidence=evidence)


def _gone(server: Server, handle: PostgresCommittable, missing: Sequence[str]) -> Settlement:
    """It has no receipt, and cannot be merged without the ``missing`` staging tables. What was merged before is there,
    if that is known."""
    lacks = f"neither its receipt nor {len(missing)} of its {len(handle.tables)} staging tables are there"
    if handle.after is None and server.timeline != handle.timeline:
        return _doubt(
            handle,
            f"{lacks}, and the server is on timeline {server.timeline} instead of {handle.timeline}: it was restored "
            "from a backup, or another server took over, and lacks what was confirmed before. Earlier checkpoints may "
            "be missing, too",
        )
    return Settlement(slot=0, outcome=Outcome.LOST, evidence=f"checkpoint {handle.checkpoint}: {lacks}")


def _went_back(session: Session, handle: PostgresCommittable, after: Receipt) -> Settlement:
    return _doubt(
        handle,
        f"checkpoint {after.checkpoint} was merged before it, and its receipt is gone. "
        f"{went_back(session, handle, after)}",
    )


def _doubt(handle: PostgresCommittable, why: str) -> Settlement:
    return Settlement(slot=0, outcome=Outcome.IN_DOUBT, evidence=f"checkpoint {handle.checkpoint}: {why}")
