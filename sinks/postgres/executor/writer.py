"""The writer of a slot: one transaction makes a staging table, copies the rows into it and registers it.

A writer that dies, or is abandoned, therefore leaves nothing. The table is logged: a crash of the server keeps its
rows. Runs on executors.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

import psycopg
import pyarrow as pa
from psycopg import sql

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.slots import Library, SlotContext, Unfit, UnfitKind, at_fault
from onceward.connectors.tasks import Vote
from onceward.sinks.postgres.connecting import POSITION, SCHEMA, Session, cause_of, connect
from onceward.sinks.postgres.errors import StagingError, UnfitTextError
from onceward.sinks.postgres.executor.rows import copy_text

__all__ = ["PostgresSlotWriter", "StagedColumn"]

_ROLL_BACK = "ROLLBACK TO SAVEPOINT onceward"
_RELEASE = "RELEASE SAVEPOINT onceward"
_AFTER_ONE = 128
"""Rows to try after one that is refused: others may follow it, and all that are tried are sent."""
_NO_TEXT = "a text has the character U+0000, which PostgreSQL has no form for (SQLSTATE 22021)"
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
    """A :class:`CheckingSlot` that is being staged. It connects for its first record."""

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
        """One for all batches, unless they are checked."""
        self._tried: tuple[pa.RecordBatch, int] | None = None
        """The batch that was copied last and is not yet written, behind a savepoint, and its bytes."""

    def unfit(self, batch: pa.RecordBatch) -> Iterator[Unfit]:
        """See :meth:`CheckingSlot.unfit`. PostgreSQL alone knows its types and constraints, so this copies the batch
        behind a savepoint, and rolls back to it if it refuses a row. Raises as :meth:`write` does for all else."""
        if not batch.num_rows:
            return
        session = self._begun(batch.schema.names)
        self._roll_back(session)
        rest, rows = batch, list(range(batch.num_rows))
        while rows and (wrong := self._without_form(rest)):
            yield from (Unfit(row=rows[row], kind=UnfitKind.SCHEMA, reason=_NO_TEXT) for row in wrong)
            rows = [row for at, row in enumerate(rows) if at not in wrong]
            rest = batch.take(pa.array(rows, pa.int64()))
        first, size = 0, rest.num_rows
        while first < rest.num_rows:
            part = rest.slice(first, size) if first else rest
            refused = self._try(session, part, keep=part is batch)
            if refused is None:
                first, size = first + part.num_rows, 2 * size
                continue
            line = _LINE.search(refused.diag.context or "")
            if line is None:  # a server that says it in another language
                errors: list[psycopg.Error] = []

                def fault(some: pa.RecordBatch, found: list[psycopg.Error] = errors) -> str | None:
                    error = self._try(session, some, keep=False)
                    found += [] if error is None else [error]
                    return None if error is None else cause_of(error)

                for row, _ in at_fault(rest.slice(first), fault):
                    yield self._unfit(rows[first + row], errors[-1])
                return
            first, size = first + int(line[1]), _AFTER_ONE
            yield self._unfit(rows[first - 1], refused)

    def _without_form(self, batch: pa.RecordBatch) -> frozenset[int]:
        """Rows with a text that PostgreSQL has no form for; none if there is no such row."""
        try:
            self._text(batch)
        except UnfitTextError as error:
            return frozenset(error.rows)
        return frozenset()

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises StagingError, and DatabaseError if the database cannot be reached."""
        if not batch.num_rows:
            return
        if self._session is None:
            session = self._begun(batch.schema.names)
            try:
                self._copy = self._opened.enter_context(self._copying(session))
            except psycopg.Error as error:
                raise self._refused(error) from error
        assert self._session is not None, "begun"
        if self._copy is not None:
            size = self._written(self._copy, batch)
        else:
            size = self._checked(self._session, batch)
        self._records += batch.num_rows
        self._bytes += size

    def _written(self, copy: psycopg.Copy, batch: pa.RecordBatch) -> int:
        text = self._text(batch)
        kill_point(KillPoint.TASK_MID_WRITE)
        try:
            copy.write(text)
        except psycopg.Error as error:
            raise self._refused(error) from error
        return len(text)

    def _checked(self, session: Session, batch: pa.RecordBatch) -> int:
        """Write a batch where batches are checked: it is there already if it was found to fit."""
        if self._tried is None or self._tried[0] is not batch:
            self._roll_back(session)
            if (error := self._try(session, batch, keep=True)) is not None:
                raise self._refused(error) from error
        assert self._tried is not None, "kept"
        (_, size), self._tried = self._tried, None
        session.execute(_RELEASE)
        return size

    def _text(self, batch: pa.RecordBatch) -> memoryview:
        return copy_text(batch, self._columns, self._records + 1, json=self._json, numbered=self._writer.keyed)

    def _try(self, session: Session, batch: pa.RecordBatch, *, keep: bool) -> psycopg.Error | None:
        """Copy ``batch`` behind a savepoint. Return why PostgreSQL refuses one of its rows; None if it takes all, which
        are rolled back unless ``keep``. Raises StagingError."""
        text = self._text(batch)
        kill_point(KillPoint.TASK_MID_WRITE)
        refused: psycopg.Error | None = None
        try:
            session.execute("SAVEPOINT onceward")
            try:
                with self._copying(session) as copy:
                    copy.write(text)
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                refused = error
            self._tried = batch, len(text)
            if refused is not None or not keep:
                self._roll_back(session)
        except psycopg.Error as error:
            raise self._refused(error) from error
        return refused

    def _roll_back(self, session: Session) -> None:
        """Remove what was copied and is not to be written."""
        if self._tried is not None:
            self._tried = None
            session.execute(_ROLL_BACK)
            session.execute(_RELEASE)

    def _unfit(self, row: int, error: psycopg.Error) -> Unfit:
        kind = UnfitKind.SCHEMA if isinstance(error, psycopg.DataError) else UnfitKind.REFUSED
        return Unfit(row=row, kind=kind, reason=self._said(error))

    def finish(self) -> Vote:
        """Make the staging table durable and vote. Raises StagingError."""
        context = self._context
        body = {}
        if self._session is not None and not self._records:
            self._session.close()  # each was set aside
        elif self._session is not None:
            try:
                self._opened.close()
                self._roll_back(self._session)
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

    def _begun(self, given: list[str]) -> Session:
        """Return the session, with a staging table for columns as ``given`` first."""
        return self._session or self._begin(given)

    def _begin(self, given: list[str]) -> Session:
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
        except psycopg.Error as error:
            raise self._refused(error) from error
        kill_point(KillPoint.TASK_AFTER_BEGIN)
        return session

    @contextmanager
    def _copying(self, session: Session) -> Iterator[psycopg.Copy]:
        copied = [*self._columns, POSITION] if self._writer.keyed else self._columns
        names = sql.SQL(", ").join(map(sql.Identifier, copied))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(self._name, names)
        with session.cursor() as cursor, cursor.copy(statement) as copy:
            yield copy

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
        return StagingError(
            f"PostgreSQL did not take the rows: {self._said(error, of_slot=True)}. No row of the checkpoint becomes "
            "visible"
        )

    def _said(self, error: psycopg.Error, *, of_slot: bool = False) -> str:
        """What PostgreSQL refuses, with the column and, ``of_slot``, the record that it names."""
        diag = error.diag
        # a full disk, for example, is no fault of the record at which it was noticed
        by_record = isinstance(error, psycopg.DataError | psycopg.IntegrityError)
        line = _LINE.search(diag.context or "") if by_record else None
        column = diag.column_name or (line[2] if line else None)
        where = [f"column {column}"] if column else []
        if diag.constraint_name:
            where.append(f"constraint {diag.constraint_name}")
        if line and of_slot:
            where.append(f"record {line[1]} of the slot")
        said = cause_of(error).replace(f'"{self._table}"', "the table")
        named = f", in {', '.join(where)}" if where else ""
        return f"{said}{named} (SQLSTATE {error.sqlstate or 'unknown'})"
