"""The rows of an Iceberg table, for ``onceward verify``."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyiceberg.types import IcebergType, PrimitiveType, TimestampType, TimestamptzType

from onceward.connectors.at_rest import TableAtRest, rows_of
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.table import LoadedTable
from onceward.sinks.lake.location import refuse_names

__all__ = ["open_table"]


class IcebergAtRest(TableAtRest):
    """One snapshot of a table."""

    def __init__(self, table: CatalogTable) -> None:
        self._table = LoadedTable(table)
        self.name = table.name
        self.columns = {field.name: _word(field.field_type) for field in self._table.schema.fields}

    def rows(self, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """See :meth:`TableAtRest.rows`."""
        return rows_of(self._table.batches(columns))

    def close(self) -> None:
        """Nothing is open between calls."""


def open_table(table: CatalogTable, name: str) -> IcebergAtRest:
    """Load the newest snapshot. Raises ConfigurationError for a ``name``, and as :class:`LoadedTable` does."""
    refuse_names("iceberg", [name] if name else [])
    return IcebergAtRest(table)


def _word(kind: IcebergType) -> str:
    match kind:
        case TimestamptzType():
            return "timestamp"
        case TimestampType():
            return "timestamp_ntz"
        case PrimitiveType():
            return str(kind).partition("(")[0]
    return "nested"
