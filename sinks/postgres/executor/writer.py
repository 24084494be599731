"""The writer of a slot: one transaction makes a staging table, copies the rows into it and registers it.

A writer that dies, or is abandoned, therefore leaves nothing. The table is logged: a crash of the server keeps its
rows. Runs on executors.
"""

import re
import secrets
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import ClassVar

import psycopg
import pyarrow as pa
from psycopg import sql

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.slots import Library, SlotContext
from onceward.connectors.tasks import Vote
from onceward.sinks.postgres.connecting import POSITION, SCHEMA, Session, cause_of, connect
from onceward.sinks.postgres.errors import StagingError
from onceward.sinks.postgres.executor.rows import copy_text

__all__ = ["PostgresSlotWriter", "StagedColumn"]

_LINE = re.compile(r"\bline (\d+)(?:, column ([^:]+))?")


@dataclass(frozen=True)
class StagedColumn:
    """A column of the target, as it is staged."""

    name: str
    type: str
    """As PostgreSQL writes it, with its modifiers."""
    required: bool
    """It takes no null."""
    json: bool
    """What is nested becomes JSON."""


@dataclass(frozen=True)
class PostgresSlotWriter:
    """Opens slots. It is pickled and runs on executors."""

    dsn: str
    """A reference, or a connection string without a password."""
    columns: tuple[StagedColumn, ...]
    """Those of the target that can be written."""
    keyed: bool
    """Rows replace others: of those with one key, the last one counts."""
    checks: tuple[tuple[frozenset[str], str, str], ...]
    """Constraints of the target: the columns that each uses, its name and its definition. A row that breaks one
    declines the checkpoint; without them it would be found after the decision."""
    libraries: ClassVar = (Library("psycopg", "3.2", "onceward[postgres-sink]"),)

    def open(self, context: SlotContext) -> "StagedSlot":
        return StagedSlot(self, context)


class StagedSlot:
    """A slot that is being staged. It connects for its first record."""

    def __init__(self, writer: PostgresSlotWriter, context: SlotContext) -> None:
        self._writer = writer
        self._context = context
        self._table = ""
        self._columns: list[str] = []
        self._json: frozenset[str] = frozenset()
        self._records = self._bytes = 0
        self._session: Session | None = None
        self._opened = ExitStack()
        self._copy: psycopg.Copy | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises StagingError, and DatabaseError if the database cannot be reached."""
        if not batch.num_rows:
            return
        if self._copy is None:
            self._begin(batch.schema.names)
        assert self._copy is not None, "begun"
        text = copy_text(batch, self._columns, self._records + 1, json=self._json, numbered=self._writer.keyed)
        kill_point(KillPoint.TASK_MID_WRITE)
        try:
            self._copy.write(text)
        except psycopg.Error as error:
            raise self._refused(error) from error
        self._records += batch.num_rows
        self._bytes += len(text)

    def finish(self) -> Vote:
        """Make the staging table durable and vote. Raises StagingError."""
        context = self._context
        body = {}
        if self._session is not None and self._copy is not None:
            try:
                self._opened.close()
                self._register(self._session)
                self._session.commit()
            except psycopg.Error as error:
                raise self._refused(error) from error
            finally:
                self._session.close()
            kill_point(KillPoint.TASK_AFTER_FLUSH)
            body = {"table": self._table, "columns": self._columns}
        return Vote(slot=context.slot, attempt=context.attempt, records=self._records, bytes=self._bytes, body=body)

    def abandon(self) -> None:
        """Close the session: the server rolls back."""
        if self._session is not None:
            self._session.close()
            with suppress(psycopg.Error):
                self._opened.close()

    def _begin(self, given: list[str]) -> None:
        writer, task = self._writer, self._context.task
        known = {column.name: column for column in writer.columns}
        if unknown := [name for name in given if name not in known]:
            raise StagingError(
                f"The table has no column {', '.join(unknown)} that can be written. Rename it in the transform, or add "
                "it to the table and start the program again. No row of the checkpoint becomes visible"
            )
        self._columns = list(given)
        self._json = frozenset(name for name in given if known[name].json)
        kill_point(KillPoint.TASK_BEFORE_BEGIN)
        self._session = session = connect(writer.dsn)
        self._table = f"g{task.generation}_s{self._context.slot}_{secrets.token_hex(12)}"
        try:
            session.autocommit = False
            session.execute(self._create([known[name] for name in given]))
            copied = [*given, POSITION] if writer.keyed else given
            names = sql.SQL(", ").join(map(sql.Identifier, copied))
            copy = sql.SQL("COPY {} ({}) FROM STDIN").format(self._name, names)
            self._copy = self._opened.enter_context(session.cursor().copy(copy))
        except psycopg.Error as error:
            raise self._refused(error) from error
        kill_point(KillPoint.TASK_AFTER_BEGIN)

    @property
    def _name(self) -> sql.Identifier:
        return sql.Identifier(SCHEMA, self._table)

    def _create(self, columns: list[StagedColumn]) -> sql.Composed:
        given = {column.name for column in columns}
        parts = [
            # PostgreSQL wrote the type itself, and the constraints below
            sql.Identifier(one.name) + sql.SQL(" ") + sql.SQL(one.type) + sql.SQL(" NOT NULL" if one.required else "")
            for one in columns
        ]
        if self._writer.keyed:
            parts.append(sql.Identifier(POSITION) + sql.SQL(" bigint NOT NULL"))
        parts += [
            sql.SQL("CONSTRAINT {} ").format(sql.Identifier(name)) + sql.SQL(definition)
            for used, name, definition in self._writer.checks
            if used <= given
        ]
        # it lives for one checkpoint
        return sql.SQL("CREATE TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
            self._name, sql.SQL(", ").join(parts)
        )

    def _register(self, session: Session) -> None:
        context, task = self._context, self._context.task
        session.execute(
            sql.SQL(
                "INSERT INTO {} (name, job, sink, generation, checkpoint, slot, attempt, records)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
            ).format(sql.Identifier(SCHEMA, "staged")),
            (
                *(self._table, task.job, context.sink, task.generation, task.checkpoint),
                *(context.slot, context.attempt, self._records),
            ),
        )

    def _refused(self, error: psycopg.Error) -> StagingError:
        """What PostgreSQL refuses, with the column and the record that it names."""
        diag = error.diag
        # a full disk, for example, is no fault of the record at which it was noticed
        by_record = isinstance(error, psycopg.DataError | psycopg.IntegrityError)
        line = _LINE.search(diag.context or "") if by_record else None
        column = diag.column_name or (line[2] if line else None)
        where = [f"column {column}"] if column else []
        if diag.constraint_name:
            where.append(f"constraint {diag.constraint_name}")
        if line:
            where.append(f"record {line[1]} of the slot")
        said = cause_of(error).replace(f'"{self._table}"', "the table")
        named = f", in {', '.join(where)}" if where else ""
        return StagingError(
            f"PostgreSQL did not take the rows: {said}{named} (SQLSTATE {error.sqlstate or 'unknown'}). No row of the "
            "checkpoint becomes visible"
        )
