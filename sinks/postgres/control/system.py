"""A PostgreSQL database as a system: in the driver, in a command, or in the coordinator for a job without a driver.

It keeps no state between calls but its hold on a claim: the committables and the database hold all it needs.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Self, TypeVar

import psycopg

from onceward.common.backoff import persist
from onceward.common.errors import ConfigurationError, FencedError
from onceward.common.links import Links
from onceward.protocol.committing import OpenTransaction, Place, PreCommitted, System, TransactionHandle
from onceward.protocol.values import Author, Claim, Committable, JobName, Outcome, Settlement
from onceward.sinks.postgres.connecting import Session, cause_of
from onceward.sinks.postgres.control import claims, merging
from onceward.sinks.postgres.control.sessions import NOT_SET_UP, Sessions
from onceward.sinks.postgres.documents import PostgresCommittable, Receipt
from onceward.sinks.postgres.errors import ContradictionError, DatabaseError
from onceward.sinks.postgres.server import Server

__all__ = ["PostgresSystem"]

_Done = TypeVar("_Done")

_PATIENCE_S = 30.0
_LEFT = "SELECT name FROM onceward_sink.staged WHERE job = %s AND NOT name = ANY(%s) ORDER BY name"
_SWEPT = """
    DELETE FROM onceward_sink.staged
    WHERE job = %(job)s AND NOT name = ANY(%(kept)s) AND (%(newest)s::bigint IS NULL OR generation <= %(newest)s)
    RETURNING name
"""
_ABORTED = """
    DELETE FROM onceward_sink.staged
    WHERE name = ANY(%s) AND job = %s AND sink = %s AND generation = %s RETURNING name
"""
_LISTED = """
    SELECT sink, generation, checkpoint, clock_timestamp() - min(at), count(*), sum(records)
    FROM onceward_sink.staged WHERE job = %s GROUP BY sink, generation, checkpoint ORDER BY sink, generation, checkpoint
"""
_JOBS = "SELECT job FROM onceward_sink.claims UNION SELECT job FROM onceward_sink.staged ORDER BY job"


class PostgresSystem(System):
    """One database. Thread-safe, but for a claim, which one thread takes and renews."""

    def __init__(
        self, dsn: str, *, generation: Callable[[], int | None] = lambda: None, links: Links | None = None
    ) -> None:
        """`generation` returns the generation granted to this process, once granted: it touches nothing newer."""
        self.sessions = Sessions(dsn)
        self._generation = generation
        self._links = links or Links()
        self._job: JobName | None = None
        self._held: list[Claim] = []
        """The claim that this object wrote last, and those that it may have written since: an answer was lost."""
        self._merged: dict[tuple[str, str], Receipt] = {}
        """The newest receipt that this object has seen, by job and sink."""

    @classmethod
    def open(cls, dsn: str, *, generation: Callable[[], int | None] = lambda: None) -> Self:
        """Return a system with sessions of its own, which are opened when they are needed."""
        return cls(dsn, generation=generation)

    def id(self) -> str:
        """See :meth:`System.id`. Raises DatabaseError if the database does not answer."""
        with self.sessions.one() as (_, server):
            return server.id

    def place(self, committable: Committable) -> Place:
        """See :meth:`System.place`. Raises HaltedError for an unreadable document."""
        handle = PostgresCommittable.of(committable)
        return Place(id=handle.system, name=handle.database)

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.check`. Also raises HaltedError for an unreadable document."""
        for committable in committables:
            PostgresCommittable.own(committable, author)

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        """See :meth:`System.commit`. Raises HaltedError before anything is asked if a document is unreadable or not the
        author's, FencedError if another driver has claimed the job, ContradictionError if the database is older than it
        was."""
        settled = []
        for handle in [PostgresCommittable.own(committable, author) for committable in committables]:
            settlement = self._commit(handle, author.generations[-1], give_up)
            if settlement is None:
                break
            settled.append(settlement)
        return settled

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.abort`. Raises HaltedError and FencedError as :meth:`commit` does, ContradictionError if
        the rows turn out committed, DatabaseError if the database does not answer; the next sweep then drops them."""
        handles = [PostgresCommittable.own(committable, author) for committable in committables]
        if not handles:
            return
        with self.sessions.one() as (session, server), session.transaction():
            for handle in handles:
                self._refuse_other_owner(session, handle.job, author.generations[-1])
                if elsewhere := _elsewhere(server, handle):
                    raise DatabaseError(f"Nothing was dropped: {elsewhere}. Nothing of it is visible. Check the DSN.")
                values = (handle.names, handle.job, handle.sink, handle.generation)
                merging.drop(session, [name for (name,) in session.execute(_ABORTED, values)])
                if merging.look(session, server, handle).outcome is Outcome.COMMITTED:
                    raise ContradictionError(
                        f"Checkpoint {handle.checkpoint} of job {handle.job} is to be aborted, and its rows were "
                        "merged. Nothing was changed. Two stores decide for this job: find the one that committed it, "
                        "and run the job with that one only."
                    )

    def outcome(self, committable: Committable) -> Settlement:
        """See :meth:`System.outcome`."""
        handle = PostgresCommittable.of(committable)
        try:
            with self.sessions.raw() as (session, server):
                return _elsewhere_in_doubt(server, handle) or merging.look(session, server, handle)
        except (psycopg.Error, DatabaseError) as error:
            return Settlement(slot=committable.slot, outcome=Outcome.IN_DOUBT, evidence=cause_of(error))

    def confirm(self, committables: Sequence[Committable]) -> None:
        """See :meth:`System.confirm`. Raises ContradictionError, and DatabaseError if the database does not answer."""
        # a sink of another kind, or on another database, may have had this name
        own = [one for one in committables if one.document.kind == PostgresCommittable.KIND]
        for handle in map(PostgresCommittable.of, own):
            with self.sessions.one() as (session, server):
                if _elsewhere(server, handle):
                    continue
                settlement = merging.look(session, server, handle)
                if settlement.outcome is not Outcome.COMMITTED:
                    raise ContradictionError(
                        f"Checkpoint {handle.checkpoint} of job {handle.job} was proved committed to table "
                        f"{'.'.join(handle.target)}, and its receipt is gone. "
                        f"{merging.went_back(session, handle, handle.receipt)}"
                    )
            self._has_merged(handle)

    def last_merged(self, job: str, sink: str) -> Receipt | None:
        """The newest receipt that this object has seen."""
        return self._merged.get((job, sink))

    def describe(self, committable: Committable) -> str:
        """See :meth:`System.describe`: names the table, the rows and the input."""
        handle = PostgresCommittable.of(committable)
        return (
            f"{handle.records} rows of checkpoint {handle.checkpoint} for table {'.'.join(handle.target)} of database "
            f"{handle.database}, in {len(handle.tables)} staging tables, from {handle.input_text or 'unknown input'}"
        )

    def handle(self, committable: Committable) -> TransactionHandle:
        """See :meth:`System.handle`. Raises HaltedError for an unreadable document."""
        handle = PostgresCommittable.of(committable)
        return _handle(handle.job, handle.sink, handle.generation, handle.checkpoint)

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`System.leftovers`. Raises DatabaseError."""
        try:
            with self.sessions.raw() as (session, _):
                return [name for (name,) in session.execute(_LEFT, (job, _names(keep)))]
        except NOT_SET_UP:
            return ()
        except psycopg.Error as error:
            raise _unanswered(error) from error

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """See :meth:`System.transactions`: one for what each checkpoint has staged. Raises DatabaseError."""
        try:
            with self.sessions.raw() as (session, server):
                rows = session.execute(_LISTED, (job,)).fetchall()
        except NOT_SET_UP:
            return ()
        except psycopg.Error as error:
            raise _unanswered(error) from error
        return [
            OpenTransaction(
                handle=_handle(job, sink, generation, checkpoint),
                cluster=server.database,
                participant=sink,
                generation=generation,
                state="Staged",
                age=max(timedelta(0), age),
                left=None,
                details={"staging tables": str(tables), "rows": str(records)},
            )
            for sink, generation, checkpoint, age, tables, records in rows
        ]

    def jobs(self) -> Sequence[JobName]:
        """See :meth:`System.jobs`. Raises DatabaseError."""
        try:
            with self.sessions.raw() as (session, _):
                return [JobName(name) for (name,) in session.execute(_JOBS)]
        except NOT_SET_UP:
            return ()
        except psycopg.Error as error:
            raise _unanswered(error) from error

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """See :meth:`System.sweep`. Raises FencedError if another driver has claimed the job, DatabaseError if the
        database does not answer."""
        newest = self._generation()
        values = {"job": job, "kept": _names(keep), "newest": newest}
        try:
            with self.sessions.raw() as (session, _), session.transaction():
                if newest is not None:
                    self._refuse_other_owner(session, job, newest)
                swept = sorted(name for (name,) in session.execute(_SWEPT, values))
                merging.drop(session, swept)
        except NOT_SET_UP:
            return ()
        except psycopg.Error as error:
            raise _unanswered(error) from error
        return swept

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        """See :meth:`System.read_claim`. Raises DatabaseError."""
        try:
            with self.sessions.raw() as (session, _):
                return claims.read(session, job)
        except NOT_SET_UP:
            return None
        except psycopg.Error as error:
            raise _unanswered(error) from error

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        """See :meth:`System.take_claim`. Waits for a merge that another process has begun. Also raises DatabaseError if
        that is impossible within 30 s."""
        deadline = time.monotonic() + _PATIENCE_S

        def take(session: Session, server: Server) -> bool:
            claims.take(session, server, job, claim, seen)
            return True

        try:
            taken = self._persist(take, lambda: time.monotonic() >= deadline, f"the claim of job {job}")
        except psycopg.Error as error:
            raise _unanswered(error) from error
        if taken is None:
            raise DatabaseError(
                f"Job {job} could not be claimed within {_PATIENCE_S:.0f} s: the database does not answer, or a merge "
                "of another process takes longer. Nothing of the job was touched; it is safe to try again."
            )
        self._job, self._held = job, [claim]

    def renew_claim(
        self, claim: Claim, *, give_up: Callable[[], bool] = lambda: False, known: PreCommitted | None = None
    ) -> bool:
        """See :meth:`System.renew_claim`. Also raises ContradictionError if the database is older than it was."""
        job = self._job
        if job is None:
            raise ConfigurationError("This system holds no claim. Nothing was written. Call take_claim() first.")
        before, self._held = list(self._held), [*self._held, claim]

        def renew(session: Session, server: Server) -> bool:
            claims.renew(session, server, job, claim, before)
            return True

        if self._persist(renew, give_up, f"job {job}") is None:
            return False
        self._held = [claim]
        return True

    def forget(self, job: JobName, last: Claim) -> None:
        """See :meth:`System.forget`. Raises DatabaseError."""
        try:
            with self.sessions.raw() as (session, _), session.transaction():
                found = claims.read(session, job, "FOR UPDATE")
                if found is not None and (found.store_id != last.store_id or found.generation > last.generation):
                    return
                rows = session.execute("DELETE FROM onceward_sink.staged WHERE job = %s RETURNING name", (job,))
                merging.drop(session, [name for (name,) in rows])
                session.execute("DELETE FROM onceward_sink.receipts WHERE job = %s", (job,))
                session.execute("DELETE FROM onceward_sink.claims WHERE job = %s", (job,))
        except NOT_SET_UP:
            return
        except psycopg.Error as error:
            raise _unanswered(error) from error

    def close(self) -> None:
        """Close the sessions. Merges and drops nothing."""
        self.sessions.close()

    # -- a commit

    def _commit(self, handle: PostgresCommittable, newest: int, give_up: Callable[[], bool]) -> Settlement | None:
        def merge(session: Session, server: Server) -> Settlement:
            if elsewhere := _elsewhere_in_doubt(server, handle):
                return elsewhere
            with session.transaction() as transaction:
                self._refuse_other_owner(session, handle.job, newest)
                settlement = merging.merge(session, server, handle)
                if settlement.outcome is not Outcome.COMMITTED:
                    raise psycopg.Rollback(transaction)
            return settlement

        try:
            settlement = self._persist(merge, give_up, f"checkpoint {handle.checkpoint} of job {handle.job}")
        except psycopg.Error as error:
            evidence = (
                f"checkpoint {handle.checkpoint}: PostgreSQL refuses to merge its rows: {_refusal(error)}. None of "
                f"them was merged, and all stay staged. {_remedy(error)}, and start the job again; or leave out all "
                f"rows of the checkpoint: onceward resolve {handle.job} --sink {handle.sink} --give-up all "
                "--reason 'NAME: REASON'"
            )
            return Settlement(slot=0, outcome=Outcome.IN_DOUBT, evidence=evidence)
        if settlement is not None and settlement.outcome is Outcome.COMMITTED:
            self._has_merged(handle)
        return settlement

    def _persist(
        self, do: Callable[[Session, Server], _Done], give_up: Callable[[], bool], waiting: str
    ) -> _Done | None:
        """Return what ``do`` returns; call it again as long as it fails for a reason that passes; None if ``give_up``
        ends that. Raises psycopg.Error for every other reason."""
        link = "the sink's database"

        def attempt() -> _Done:
            with self.sessions.raw() as (session, server):
                done = do(session, server)
            self._links.worked(link)
            return done

        def failed(error: Exception) -> None:
            if isinstance(error, psycopg.Error) and not _passes(error):
                raise error
            why = cause_of(error) if isinstance(error, psycopg.Error) else str(error)
            held = isinstance(error, psycopg.errors.LockNotAvailable)
            self._links.failed(link, why, waiting=waiting, held=held)

        return persist(attempt, (psycopg.Error, DatabaseError), failed, give_up, longest=1.0)

    def _refuse_other_owner(self, session: Session, job: str, newest: int) -> None:
        """Lock the claim until the transaction ends, and compare it: a process that slept cannot merge or drop
        anything of a job that another has claimed meanwhile. A process without a claim of its own knows its generation.
        Raises FencedError and ContradictionError."""
        found = claims.read(session, job, "FOR SHARE")
        if self._held and self._job == job:
            claims.refuse_other_owner(job, found, self._held)
        elif found is not None and found.generation > newest:
            raise FencedError(f"Job {job} was claimed by {found}. Nothing further is merged by generation {newest}.")

    def _has_merged(self, handle: PostgresCommittable) -> None:
        self._merged[handle.job, handle.sink] = handle.receipt


def _passes(error: psycopg.Error) -> bool:
    """Whether the same may work later: the server is away, restarts, is full, is a standby, or something is locked."""
    return isinstance(error, psycopg.OperationalError | psycopg.errors.ReadOnlySqlTransaction)


def _refusal(error: psycopg.Error) -> str:
    detail = (error.diag.message_detail or "").rstrip(".")
    return f"{cause_of(error)}{detail and f' ({detail})'}, SQLSTATE {error.sqlstate}"


def _remedy(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.IntegrityError):
        return "Remove or add the row of the table that this names, or drop the constraint"
    return "Remove the cause"


def _elsewhere(server: Server, handle: PostgresCommittable) -> str:
    """Why the rows are not in this database; empty if they are."""
    if server.id == handle.system:
        return ""
    return (
        f"the rows of checkpoint {handle.checkpoint} were staged in database {handle.database} with id "
        f"{handle.system}, and the one that answers now is another ({server.database} is {server.id})"
    )


def _elsewhere_in_doubt(server: Server, handle: PostgresCommittable) -> Settlement | None:
    elsewhere = _elsewhere(server, handle)
    return Settlement(slot=0, outcome=Outcome.IN_DOUBT, evidence=elsewhere) if elsewhere else None


def _names(committables: Iterable[Committable]) -> list[str]:
    return [name for one in committables for name in PostgresCommittable.of(one).names]


def _handle(job: str, sink: str, generation: int, checkpoint: int) -> TransactionHandle:
    return TransactionHandle(f"{job}.{sink}.{generation}.{checkpoint}")


def _unanswered(error: psycopg.Error) -> DatabaseError:
    return DatabaseError(
        f"PostgreSQL did not carry out a statement on the sink's own tables: {cause_of(error)}. It is safe to try it "
        "again."
    )
