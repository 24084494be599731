"""The rows of an Iceberg table, for ``onceward verify``."""

from pyiceberg.types import IcebergType, PrimitiveType, TimestampType, TimestamptzType

from onceward.connectors.at_rest import ArrowTable
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.table import LoadedTable
from onceward.sinks.lake.location import refuse_names

__all__ = ["open_table"]


def open_table(location: CatalogTable, name: str) -> ArrowTable:
    """Load the newest snapshot. Raises ConfigurationError for a ``name``, and as :class:`LoadedTable` does."""
    refuse_names("iceberg", [name] if name else [])
    table = LoadedTable(location)
    columns = {field.name: _word(field.field_type) for field in table.schema.fields}
    return ArrowTable(location.name, columns, table.batches)


def _word(kind: IcebergType) -> str:
    match kind:
        case TimestamptzType():
            return "timestamp"
        case TimestampType():
            return "timestamp_ntz"
        case PrimitiveType():
            return str(kind).partition("(")[0]
    return "nested"
