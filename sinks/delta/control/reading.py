"""The rows of a Delta table, for ``onceward verify``."""

from collections.abc import Iterator, Sequence
from typing import Any

from onceward.connectors.at_rest import TableAtRest, rows_of
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.location import refuse_names

__all__ = ["open_table"]


class DeltaAtRest(TableAtRest):
    """One version of a table."""

    def __init__(self, location: TableLocation) -> None:
        self._table = LoadedTable(location)
        self.name = location.uri
        self.columns = {str(field["name"]): _word(field["type"]) for field in self._table.fields()}

    def rows(self, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """See :meth:`TableAtRest.rows`."""
        return rows_of(self._table.batches(columns))

    def close(self) -> None:
        """Nothing is open between calls."""


def open_table(location: TableLocation, name: str) -> DeltaAtRest:
    """Load the newest version. Raises ConfigurationError for a ``name``, and as :class:`LoadedTable` does."""
    refuse_names("delta", [name] if name else [])
    return DeltaAtRest(location)


def _word(kind: object) -> str:
    return kind.partition("(")[0] if isinstance(kind, str) else "nested"
