"""What a store needs of its database: one connection that nothing ever replaces, held by this process alone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from onceward.coordinator.store.errors import StoreError
from onceward.wire.rows import Leader, Standby

__all__ = ["MAX_STANDBYS", "Beside", "Candidate", "Database", "StoreKind", "cause_of"]

MAX_STANDBYS = 100
"""Shown at a time."""


class StoreKind(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"

    @property
    def shared(self) -> bool:
        """Several coordinators can have the store: one leads, the others stand by."""
        return self is StoreKind.POSTGRESQL


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A connection that only reads."""

    connection: Connection
    close: Callable[[], None]
    """Never raises."""


class Database(ABC):
    """An open database. Its lock is held from construction to :meth:`close`."""

    kind: StoreKind
    name: str
    """For messages: a file, or where the tables are."""
    own_place: str
    """For messages: what to give a store that finds another one's tables."""
    errors: tuple[type[Exception], ...] = (SQLAlchemyError,)
    """What the database raises."""
    pause_s: float | None = None
    """Seconds of silence after which the database releases the lock; None if only this process can release it."""
    connection: Connection
    """The only one. A connection that broke stays broken: another one might not hold the lock, and what it reads might
    not hold the last write."""

    read_beside: Callable[[], Beside] | None = None
    """Opens another connection, for listings; None if there can be none. Raises StoreError."""

    timeline = 1
    """Higher in a promoted copy than in the database that it replaces, if the database counts that."""

    def limit_silence(self) -> None:  # noqa: B027 - a file's lock ends with its process alone
        """From now on release the lock when this process is silent for long, and set ``pause_s``. Opening a store may
        take a while, and so may a transaction of it."""

    def limit_lead(self) -> None:  # noqa: B027 - as above
        """From now on release the lock when this process is silent for ``pause_s``, and when a transaction takes
        long."""

    def allow_silence(self) -> None:  # noqa: B027 - as above
        """Keep the lock however long this process is silent: no other one could use it."""

    def standbys(self) -> Sequence[Standby]:
        """Who waits for the lead, the longest first, at most MAX_STANDBYS. Call it in a transaction."""
        return ()

    @abstractmethod
    def explain(self, error: Exception, doing: str) -> StoreError:
        """The error of a store for an error that occurred while ``doing``."""

    def together(self) -> AbstractContextManager[object]:
        """Send the statements of a block at once, where that saves waits. SQLAlchemy finds no rows in it."""
        return nullcontext()

    @abstractmethod
    def close(self) -> None:
        """Release the connection and the lock. Never raises: everything applied is already durable."""

    @abstractmethod
    def check_rights(self, tables: Collection[str]) -> None:
        """Check that the store's tables may be read and written. Raises StoreUnusableError."""

    def require_alone(self, tables: Collection[str]) -> None:  # noqa: B027 - a file's lock keeps all others out
        """Keep all other sessions from the tables, in the caller's transaction: they are to be changed. Raises
        StoreUnusableError that names who uses them."""

    @abstractmethod
    def secure_creation(self) -> None:
        """Make a new store's tables and id as durable as its later writes."""

    def is_lost(self, error: Exception) -> bool:
        """True if the error ended the connection, and with it the lock."""
        return isinstance(error, DBAPIError) and error.connection_invalidated

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Raise what the database raises as StoreError."""
        try:
            yield
        except self.errors as error:
            raise self.explain(error, doing) from error


class Candidate(ABC):
    """A process that would lead on a database."""

    waits: bool
    """Whether it can wait for the lead; otherwise :meth:`wait` raises StoreUnusableError at once."""

    @abstractmethod
    def wait(self, seconds: float) -> Database | None:
        """Return the database with its lock; None if another process still holds it after ``seconds``. The database
        releases the lock again if this process is silent before it leads.

        Raises StoreUnusableError, also when the database has ended the session: then close it and make another one.
        """

    @abstractmethod
    def leader(self) -> Leader | None:
        """The coordinator that leads, or led last; None if unknown. Raises StoreUnusableError."""

    @abstractmethod
    def holder(self) -> str:
        """For messages: the process that holds the lock. Raises StoreUnusableError."""

    @abstractmethod
    def close(self) -> None:
        """Stop waiting. A database that was returned stays open. Never raises."""


def cause_of(error: Exception) -> str:
    """What the driver said, in one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
