"""From a store's URL to its database."""

from onceward.coordinator.store.database import Database
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.sqlite import SqliteDatabase, file_of

__all__ = ["open_database"]

_POSTGRES = ("postgresql://", "postgres://")


def open_database(url: str, password: str | None = None) -> Database:
    """Open the database of a store, for this process alone. Raises StoreUnusableError, StoreDamagedError."""
    if url.startswith(_POSTGRES):
        try:
            from onceward.coordinator.store.postgres import PostgresDatabase  # its driver is an extra
        except ImportError as error:
            raise StoreUnusableError(
                f"A store on PostgreSQL needs psycopg, which cannot be loaded ({error}). Nothing was started. "
                "Install it with: pip install 'onceward[postgres]'"
            ) from None
        return PostgresDatabase(url, password)
    file = file_of(url)
    if password is not None:
        raise StoreUnusableError(f"The store {url} is a file, which has no password. Nothing was started.")
    return SqliteDatabase(file)
