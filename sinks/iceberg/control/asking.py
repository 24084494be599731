"""Calls of the library whose errors say what happened, what it means for the data, and what to do."""

from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

import pyiceberg.exceptions
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from sqlalchemy.exc import SQLAlchemyError

from onceward.connections.storage import StorageError
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.lake.control.tables import CommitRefusedError, NoTableError, UnsupportedTableError

__all__ = ["asking"]

T = TypeVar("T")

_FAILURES: tuple[type[Exception], ...] = (
    *(one for one in vars(pyiceberg.exceptions).values() if isinstance(one, type) and issubclass(one, Exception)),
    SQLAlchemyError,
    OSError,
    ValueError,
)


def asking(location: CatalogTable, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns. Raises NoTableError, CommitRefusedError, UnsupportedTableError, StorageError."""
    try:
        return ask()
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise NoTableError(
            f"There is no Iceberg table {location.name} in its catalogue ({_said(location, error)})."
        ) from None
    except CommitFailedException as error:
        raise CommitRefusedError(
            f"A commit to the Iceberg table {location.name} was refused, as after a commit of another program: "
            f"{_said(location, error)}. The table is looked at again before the next attempt."
        ) from None
    except NotImplementedError as error:
        raise UnsupportedTableError(
            f"The Iceberg table {location.name} needs what pyiceberg {version('pyiceberg')} cannot do: "
            f"{_said(location, error)}. Nothing was written to it. Install a newer pyiceberg, or undo what changed the "
            "table."
        ) from None
    except _FAILURES as error:
        location.forget()
        raise StorageError(
            f"The Iceberg table {location.name} could not be read or written: {_said(location, error)}. What is "
            "committed stays; what can be repeated is tried again. Check the catalogue, the storage, and the rights of "
            "this user."
        ) from None


def _said(location: CatalogTable, error: Exception) -> str:
    """In one line, without secrets and statements of SQL. No cause is kept beside it: its text may have them."""
    cause = getattr(error, "orig", None) or error
    return location.without_secrets(" ".join(f"{type(cause).__name__}: {cause}".split()))
