"""The rows of a Delta table, for ``onceward verify``."""

from onceward.connectors.at_rest import ArrowTable
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.location import refuse_names

__all__ = ["open_table"]


def open_table(location: TableLocation, name: str) -> ArrowTable:
    """Load the newest version. Raises ConfigurationError for a ``name``, and as :class:`LoadedTable` does."""
    refuse_names("delta", [name] if name else [])
    table = LoadedTable(location)
    columns = {str(field["name"]): _word(field["type"]) for field in table.fields()}
    return ArrowTable(location.uri, columns, table.batches)


def _word(kind: object) -> str:
    return kind.partition("(")[0] if isinstance(kind, str) else "nested"
