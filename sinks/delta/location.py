"""Where a Delta table is, by a systems file. Standard library only."""

from collections.abc import Mapping
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.sinks.lake.location import TableLocation

__all__ = ["TableLocation", "location_of"]


def location_of(name: str, table: Mapping[str, Any]) -> TableLocation:
    """Return the location that a table of a systems file describes. Raises ConfigurationError."""
    unknown = table.keys() - {"table", "storage"}
    if unknown:
        raise ConfigurationError(f"unknown: {', '.join(sorted(unknown))}; known are table and storage")
    return TableLocation.of(table.get("table", ""), table.get("storage"))
