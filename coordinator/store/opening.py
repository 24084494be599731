"""From a store's URL to its database."""

from contextlib import closing

from onceward.coordinator.store.database import Candidate, Database, StoreKind
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.sqlite import SqliteCandidate, file_of

__all__ = ["kind_of", "open_candidate", "open_database"]

_POSTGRES = ("postgresql://", "postgres://")
_LOCK_WAIT_S = 3.0
"""The session of a killed coordinator ends a moment after its process."""


def kind_of(url: str) -> StoreKind:
    return StoreKind.POSTGRESQL if url.startswith(_POSTGRES) else StoreKind.SQLITE


def open_database(url: str, password: str | None = None) -> Database:
    """Open the database of a store, for this process alone. Raises StoreUnusableError, StoreDamagedError."""
    with closing(open_candidate(url, password)) as candidate:
        database = candidate.wait(_LOCK_WAIT_S)
        if database is None:
            raise StoreUnusableError(
                f"The store {url} is in use by another process ({candidate.holder()}); two coordinators on one store "
                "would decide against each other. Nothing was started. Stop that process, or use another store."
            )
    try:
        with database.translated("opening the store"):
            database.allow_silence()
    except BaseException:
        database.close()
        raise
    return database


def open_candidate(url: str, password: str | None = None) -> Candidate:
    """Reach the database of a store, to lead when no other process does. Raises StoreUnusableError."""
    if kind_of(url) is StoreKind.POSTGRESQL:
        try:
            from onceward.coordinator.store.postgres import PostgresCandidate  # its driver is an extra
        except ImportError as error:
            raise StoreUnusableError(
                f"A store on PostgreSQL needs psycopg, which cannot be loaded ({error}). Nothing was started. "
                "Install it with: pip install 'onceward[postgres]'"
            ) from None
        return PostgresCandidate(url, password)
    file = file_of(url)
    if password is not None:
        raise StoreUnusableError(f"The store {url} is a file, which has no password. Nothing was started.")
    return SqliteCandidate(file)
