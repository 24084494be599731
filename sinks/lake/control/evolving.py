"""Adds columns to a table, in a commit of their own before any file is written.

Repeating it changes nothing: the columns that are there already are left out.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from onceward.common.backoff import Backoff
from onceward.common.errors import CheckpointFailedError
from onceward.sinks.lake.control.tables import CommitRefusedError, LakeTable

__all__ = ["evolve"]

_Table = TypeVar("_Table", bound=LakeTable)
_ATTEMPTS = 20


def evolve(
    load: Callable[[], _Table],
    wanted: Mapping[str, str],
    there: Callable[[_Table], Mapping[str, str]],
    add: Callable[[_Table, Collection[str]], None],
) -> _Table:
    """Return the table with the columns. Raises CheckpointFailedError if one is there with another type, or if other
    programs change the table all the time; StorageError and UnsupportedTableError.

    :param wanted: the type of each column, as Spark writes it.
    :param there: the same of the columns that a table has.
    :param add: adds some of the columns to a table, and raises CommitRefusedError if it has changed meanwhile.
    """
    backoff = Backoff(first=0.01, longest=1.0)
    table = load()
    for _ in range(_ATTEMPTS):
        found = {name.lower(): kind for name, kind in there(table).items()}
        for name, kind in wanted.items():
            if found.get(name.lower(), kind) != kind:
                raise CheckpointFailedError(
                    f"Column {name} was to be added to {table.uri} as {kind}, and another program has added it as "
                    f"{found[name.lower()]}. Nothing of the checkpoint is visible. Cast it in the transform."
                )
        missing = [name for name in wanted if name.lower() not in found]
        if not missing:
            return table
        try:
            add(table, missing)
        except CommitRefusedError:
            time.sleep(backoff.next())
        table = load()
    raise CheckpointFailedError(
        f"Columns could not be added to {table.uri}: other programs have changed it {_ATTEMPTS} times meanwhile. "
        "Nothing of the checkpoint is visible; it is tried again."
    )
