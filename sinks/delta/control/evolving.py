"""Adds columns to a table. The library drops those of files that the table does not have, without an error, so they are
added in a commit of their own before any file is written.

Repeating it changes nothing: the columns that are there already are left out.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.common.backoff import Backoff
from onceward.common.errors import CheckpointFailedError
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.control.tables import CommitRefusedError

__all__ = ["add_columns"]

_ATTEMPTS = 20


def add_columns(location: TableLocation, wanted: Sequence[Mapping[str, Any]]) -> LoadedTable:
    """Return the table with the columns. Raises CheckpointFailedError if one is there with another type, or if other
    programs change the table all the time; StorageError and UnsupportedTableError."""
    backoff = Backoff(first=0.01, longest=1.0)
    for _ in range(_ATTEMPTS):
        table = LoadedTable(location)
        there = {field["name"].lower(): field["type"] for field in table.fields()}
        for field in wanted:
            found = there.get(field["name"].lower(), field["type"])
            if found != field["type"]:
                raise CheckpointFailedError(
                    f"Column {field['name']} was to be added to {location.uri} as {field['type']}, and another program "
                    f"has added it as {found}. Nothing of the checkpoint is visible. Cast it in the transform."
                )
        missing = [field for field in wanted if field["name"].lower() not in there]
        if not missing:
            return table
        try:
            table.add_columns(missing)
        except CommitRefusedError:
            time.sleep(backoff.next())
    raise CheckpointFailedError(
        f"Columns could not be added to {location.uri}: other programs have changed it {_ATTEMPTS} times meanwhile. "
        "Nothing of the checkpoint is visible; it is tried again."
    )
