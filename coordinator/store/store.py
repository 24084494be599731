"""The store of one coordinator: writes durable facts, reads the state for a restart and for listings."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Self, TypeVar

from sqlalchemy import Connection

from onceward.common.printable import log_fields, logger
from onceward.coordinator.store.checkpoint_rows import Unfinished
from onceward.coordinator.store.database import Database, StoreKind, cause_of
from onceward.coordinator.store.errors import StoreError
from onceward.coordinator.store.identity import identify
from onceward.coordinator.store.listing import Listings
from onceward.coordinator.store.loading import load
from onceward.coordinator.store.opening import open_database
from onceward.coordinator.store.reader import Reader
from onceward.coordinator.store.retention import prune
from onceward.coordinator.store.term import Term, begin_term, require_term
from onceward.coordinator.store.writing import write_notes, write_steps
from onceward.protocol.answers import Note
from onceward.protocol.durable import Durable
from onceward.protocol.facts import Fact
from onceward.protocol.values import JobName
from onceward.wire.rows import Leader, Standby

__all__ = ["Store", "with_suspension"]

_log = logger("onceward.store")

T = TypeVar("T")

_CONFIRMATIONS = 4
"""In the silence that ends the lead."""


def with_suspension() -> float:
    """Seconds on a clock that counts the time for which this machine is suspended: the database's clock runs on, and
    another coordinator may lead. Only Linux has one for certain; elsewhere this is the monotonic clock."""
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Store(Listings):
    """One database with one writer, this process, for one term. Not thread-safe.

    Any failure of a read or a write raises StoreError. Whether the last write happened is unknown then, so every later
    call raises too. Leave the process, or open the store again.
    """

    term: Term
    """This process writes only while it lasts."""

    def __init__(
        self,
        database: Database,
        *,
        address: str = "",
        web: str = "",
        clock: Callable[[], float] = with_suspension,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Begin a term on the store in ``database``, or on a new store there; then the store closes the database.

        :param address: where clients reach this coordinator.
        :param web: where browsers reach its page.
        :param clock: seconds, for the end of the lead.
        """
        self._database = database
        self._clock = clock
        self._pause_s = math.inf if database.pause_s is None else database.pause_s
        self._failure: StoreError | None = None
        self._unfinished: Unfinished = {}
        with database.translated("opening the store"):
            self.store_id = identify(database)
            """Random id, assigned when the store is created. Part of every claim."""
            with self._transaction() as connection:
                now = wall()
                self.term = begin_term(connection, address, web=web, at=now, timeline=database.timeline)
        self.leader = Leader(address=address, term=self.term.number, since=now, web=web)
        """This coordinator, as standbys see it."""

    @classmethod
    def open(cls, url: str, *, password: str | None = None) -> Self:
        """Open or create a store. Raises StoreUnusableError (in use, of another schema, in an untrustworthy place),
        StoreDamagedError.

        :param url: ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``.
        :param password: for PostgreSQL.
        """
        database = open_database(url, password)
        try:
            return cls(database)
        except BaseException:
            database.close()
            raise

    @classmethod
    def lead(cls, database: Database, *, address: str, web: str = "") -> Self:
        """Open or create the store in ``database`` for a coordinator that another one may replace: load the jobs, call
        :meth:`limit_silence`, and then :meth:`confirm` when it is due. Closes the database when that fails. Raises as
        :meth:`open` does.

        :param address: where clients reach this coordinator.
        :param web: where browsers reach its page.
        """
        try:
            with database.translated("opening the store"):
                database.limit_silence()
            return cls(database, address=address, web=web)
        except BaseException:
            database.close()
            raise

    @property
    def can_move(self) -> bool:
        """True if another process can lead on this store when this one cannot."""
        return math.isfinite(self._pause_s)

    @property
    def leads_for(self) -> float:
        """For how many seconds no other coordinator can lead, because the database has not ended this session yet. Not
        above 0: unknown, :meth:`confirm` first."""
        return self._confirmed + self._pause_s - self._clock()

    @property
    def confirm_in(self) -> float:
        """In how many seconds to :meth:`confirm`, if nothing else uses the store before."""
        return self._confirmed + self._pause_s / _CONFIRMATIONS - self._clock()

    def confirm(self) -> None:
        """Ask the database whether this process still leads. Raises LeadLostError, StoreError."""
        with self._reading("confirming the lead") as connection:
            require_term(connection, self.term, lock=False)

    @property
    def kind(self) -> StoreKind:
        return self._database.kind

    def standbys(self) -> tuple[Standby, ...] | None:
        """Who waits for the lead, for display; None if the database does not say. Raises StoreError only when the
        connection is lost."""
        self._require()
        try:
            with self._transaction():
                return tuple(self._database.standbys())
        except self._database.errors as error:
            if self._database.is_lost(error):
                self._failure = self._database.explain(error, "asking who stands by")
                raise self._failure from error
            _log.warning("%s", log_fields({"event": "standbys_unknown", "detail": cause_of(error)}))
            return None

    def load_jobs(self) -> list[Durable]:
        """Every job with the state that a restart needs, by name. A job whose record is damaged is marked as such.

        With a limit on silence, what is decoded between two reads must not take that long.
        """
        found: dict[JobName, Durable] = {}
        for durable in load(self._read_jobs, self.store_id):
            found[durable.job] = durable
            if self.confirm_in <= 0:
                self.confirm()
        return [found[job] for job in sorted(found)]

    def _read_jobs(self, query: Callable[[Connection], T]) -> T:
        with self._reading("reading the jobs") as connection:
            return query(connection)

    def limit_silence(self) -> None:
        """From now on the lead ends with a short silence, and in a transaction that takes long. Call it when the jobs
        are read. Raises StoreError."""
        with self._failing("setting the limits of the lead"):
            self._database.limit_lead()

    def apply(self, steps: Sequence[tuple[Durable, Sequence[Fact]]], *, at: datetime) -> None:
        """Write several steps in one transaction, in order: all or none. They are on disk when this returns.

        One wait for the disk serves all steps; it is nearly the whole cost of a small step.
        """
        jobs = ", ".join(sorted({str(durable.job) for durable, _ in steps}))
        doing = f"writing {sum(len(facts) for _, facts in steps)} facts of {jobs}"
        with self._writing(doing) as connection, self._database.together():
            write_steps(connection, steps, _milliseconds(at), self._unfinished)

    def note(self, job: JobName, notes: Sequence[tuple[Note, int]], *, at: datetime) -> None:
        """Write calls that were not accepted to the history, each with its count."""
        with self._writing(f"noting refused calls of job {job}") as connection:
            write_notes(connection, job, _milliseconds(at), notes)

    def prune(self, jobs: Sequence[tuple[JobName, int]]) -> bool:
        """Delete what retention does not keep, for several jobs in one transaction.

        Best effort: a failed prune is rolled back, logged and retried by the next one. Returns False then.

        :param jobs: each job with the number of completed checkpoints to keep besides savepoints.
        """
        self._require()
        names = ",".join(job for job, _ in jobs)
        try:
            with self._write_transaction() as connection, self._database.together():
                prune(connection, jobs)
        except self._database.errors as error:
            if self._database.is_lost(error):
                self._failure = self._database.explain(error, f"removing what retention does not keep of {names}")
                raise self._failure from error
            said = {"event": "retention_failed", "jobs": names, "detail": cause_of(error)}
            _log.warning("%s", log_fields(said))
            return False
        return True

    def reader(self) -> Reader | None:
        """What lists through a connection of its own; None if the database has one connection only."""
        return Reader(self._database, self.term) if self._database.read_beside is not None else None

    def close(self) -> None:
        """Release the database and its lock. Never raises: everything applied is already durable."""
        self._database.close()

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with self._failing(doing), self._write_transaction() as connection:
            yield connection

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Connection]:
        with self._failing(doing), self._transaction() as connection:
            yield connection

    @contextmanager
    def _write_transaction(self) -> Iterator[Connection]:
        """The only place where a transaction that writes begins and commits."""
        with self._transaction() as connection:
            try:
                require_term(connection, self.term)
            except StoreError as error:
                self._failure = error
                raise
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        begun = self._clock()
        with self._database.connection.begin():
            yield self._database.connection
        self._confirmed = begun  # not the end: the database has counted this session's silence since its last answer

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Make what the database raises the store's failure: every later call raises it."""
        self._require()
        try:
            with self._database.translated(doing):
                yield
        except StoreError as error:
            self._failure = error
            raise

    def _require(self) -> None:
        if self._failure is not None:
            raise self._failure


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)
