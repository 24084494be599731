"""A PostgreSQL sink for one run of a job, on the driver."""

import re
import secrets
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, LiteralString

import psycopg

from onceward.common.errors import CheckpointFailedError, ConfigurationError, FencedError
from onceward.connectors.interfaces import (
    Chosen,
    Finding,
    JobContext,
    Origin,
    Refusal,
    ReplayRefusedError,
    Resource,
    SinkSession,
)
from onceward.connectors.tasks import Vote
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import CheckpointId, Committable, Generation, OnLost
from onceward.sinks.postgres.connecting import Session, cause_of
from onceward.sinks.postgres.control import claims
from onceward.sinks.postgres.control.system import PostgresSystem
from onceward.sinks.postgres.documents import PostgresCommittable, Receipt, StagedTable
from onceward.sinks.postgres.driver import columns, preflight
from onceward.sinks.postgres.driver.tables import Table, describe
from onceward.sinks.postgres.errors import DatabaseError
from onceward.sinks.postgres.executor.writer import PostgresSlotWriter, StagedColumn

if TYPE_CHECKING:
    from onceward.sinks.postgres.driver.sink import PostgresSink

__all__ = ["PostgresSinkSession"]

_REFUSED = re.compile(r"\(SQLSTATE (\w{5})\)")
_BY_RECORD = ("22", "23")
"""Classes of codes for a value that does not fit, and for one that breaks a constraint."""
_BY_SERVER = ("53", "57", "58")
"""Classes of codes for resources that are used up, such as its disk, and for a server that stops or fails."""
_STAGED: LiteralString = """
    SELECT name, records FROM onceward_sink.staged
    WHERE name = ANY(%s) AND job = %s AND sink = %s AND generation = %s
        AND to_regclass('onceward_sink.' || quote_ident(name)) IS NOT NULL
"""
_THERE: LiteralString = """
    SELECT EXISTS (SELECT FROM onceward_sink.staged WHERE name = ANY(%s) AND job = %s)
        OR EXISTS (SELECT FROM onceward_sink.receipts WHERE job = %s AND sink = %s AND token = %s)
"""


class PostgresSinkSession(SinkSession):
    """One table. Implements :class:`Replays`, too."""

    def __init__(self, sink: "PostgresSink", context: JobContext) -> None:
        self.participant = sink.participant
        self.database_id = ""
        """The id of the database that answered when the sink was connected."""
        self._dsn = sink.dsn
        self._named = sink.table
        self._key = sink.key
        self._delete = sink.delete
        self._context = context
        self._generation: Generation | None = None
        self._last: PostgresCommittable | None = None
        """What was pre-committed last."""
        self._table: Table | None = None
        self._system = PostgresSystem(sink.dsn, generation=lambda: self._generation, links=context.links)

    def preflight(self) -> Sequence[Finding]:
        """See :meth:`SinkSession.preflight`. Raises DatabaseError if the database stops answering."""
        check = preflight.Check(table=self._named, key=self._key, deletes=bool(self._delete))
        with self._system.sessions.one() as (session, server):
            (self._table,), findings = preflight.examine(session, server, self._context.job, [check])
        return findings

    def writes(self) -> Collection[Resource]:
        name = self._found().full_name
        return [Resource(kind="PostgreSQL table", cluster=self.database_id, name=name)]

    def begin_generation(self, generation: Generation) -> None:
        """See :meth:`SinkSession.begin_generation`. Reads the table's columns again."""
        self._generation = generation
        with self._system.sessions.one() as (session, _):
            self._table = describe(session, self._named)
        self._found()

    def choose(self, given: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        return columns.choose(given, self._found(), key=self._key, delete=self._delete)

    def write(self) -> PostgresSlotWriter:
        table = self._found()
        staged = [
            StagedColumn(
                one.name, one.type, required=one.required or one.name in self._key, json=one.base in columns.JSON
            )
            for one in table.writable
        ]
        if self._delete:
            staged.append(StagedColumn(self._delete, "boolean", required=False, json=False))
        return PostgresSlotWriter(
            dsn=self._dsn,
            columns=tuple(staged),
            keyed=bool(self._key),
            checks=tuple(table.checks),
        )

    def explain(self, cause: str) -> Refusal | None:
        """Explain what PostgreSQL refuses: the message names column and record."""
        found = _REFUSED.search(cause)
        if found is None:
            return None
        table = self._table.full_name if self._table is not None else self._named
        remedy = f"Correct or leave out the row in the transform, or change table {table}"
        if found[1].startswith(_BY_SERVER):
            remedy = "Give the server what it lacks; the job tries again"
        text = cause.removesuffix(". No row of the checkpoint becomes visible")
        return Refusal(text=f"{text}. {remedy}", by_record=found[1].startswith(_BY_RECORD))

    def hides_until_decided(self) -> bool:
        return True

    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        """See :meth:`SinkSession.pre_commit`. Also raises FencedError if a newer generation has claimed the job,
        DatabaseError if the database does not answer."""
        voted = [vote for vote in votes if vote.body]
        if not voted:
            return PreCommitted(committables=())
        job, sink, generation = self._context.job, self.participant.name, self._granted()
        names = [str(vote.body["table"]) for vote in voted]
        try:
            with self._system.sessions.raw() as (session, server):
                claim = claims.read(session, job)
                staged = dict(session.execute(_STAGED, (names, job, sink, generation)).fetchall())
                after = self._before(session, checkpoint)
        except psycopg.Error as error:
            raise DatabaseError(
                f"Whether checkpoint {checkpoint} is staged is unknown: {cause_of(error)}. Nothing of it is visible; "
                "its records are read again."
            ) from error
        if claim is not None and claim.generation > generation:
            raise FencedError(f"Job {job} was claimed by {claim}. Nothing of checkpoint {checkpoint} is merged.")
        for vote, name in zip(voted, names, strict=True):
            if staged.get(name) != vote.records:
                raise CheckpointFailedError(
                    f"Slot {vote.slot} has voted for {vote.records} rows in staging table {name}, and "
                    f"{'it is gone' if name not in staged else f'{staged[name]} are staged'}. Nothing of the "
                    "checkpoint becomes visible; its records are read again."
                )
        table, origin = self._found(), Origin.of_all(origins)
        handle = PostgresCommittable(
            system=server.id,
            database=server.database,
            timeline=server.timeline,
            job=job,
            sink=sink,
            generation=generation,
            checkpoint=checkpoint,
            store="" if claim is None else claim.store_id,
            token=secrets.token_hex(16),
            after=after,
            target=(table.schema, table.name),
            columns=tuple(str(name) for name in voted[0].body["columns"] if name != self._delete),
            key=self._key,
            delete=self._delete,
            tables=tuple(
                StagedTable(name=name, slot=vote.slot, records=vote.records)
                for vote, name in zip(voted, names, strict=True)
            ),
            bytes=sum(vote.bytes for vote in voted),
            inputs=origin.inputs,
            input_text=origin.text,
        )
        self._last = handle
        return PreCommitted(committables=(handle.to_committable(),))

    def _before(self, session: Session, checkpoint: CheckpointId) -> Receipt | None:
        """The receipt of what is merged before ``checkpoint``: of what was pre-committed last, unless that was aborted
        or may be given up; else of what was merged last."""
        merged, last = self._system.last_merged(self._context.job, self.participant.name), self._last
        if last is None or last.checkpoint >= checkpoint or self.participant.on_lost is OnLost.SKIP:
            return merged
        there = session.execute(_THERE, (last.names, last.job, last.job, last.sink, last.token)).fetchone()
        return last.receipt if there == (True,) else merged

    def origin(self, committable: Committable) -> Origin:
        made = PostgresCommittable.of(committable)
        return Origin(inputs=made.inputs, replayable=bool(made.inputs), text=made.input_text, whole=True)

    def check_destination(self, lost: Sequence[Committable]) -> None:
        """See :meth:`Replays.check_destination`. Raises DatabaseError."""
        table, database = self._found(), self._system.id()
        for wanted in map(PostgresCommittable.of, lost):
            if (wanted.system, wanted.target) != (database, (table.schema, table.name)):
                raise ReplayRefusedError(
                    f"the rows were for table {'.'.join(wanted.target)} of database {wanted.system}, the sink leads to "
                    f"{table.full_name} of {database} now"
                )

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """The next merge removes what is no longer needed."""

    def system(self) -> PostgresSystem:
        return self._system

    def close(self) -> None:
        self._system.close()

    def _found(self) -> Table:
        if self._table is None:
            raise ConfigurationError(
                f"There is no table {self._named} in the database. Nothing was read or written. Create it, or name its "
                "schema, and start the program again."
            )
        return self._table

    def _granted(self) -> Generation:
        if self._generation is None:
            raise ConfigurationError(
                "This PostgreSQL sink has no generation. Nothing was asked or written. Call begin_generation() first."
            )
        return self._generation
